package manager

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// authors knows whether the API server records who writes applications, and checks who names a service account. Without that
// anybody could say that an application was written by anybody else, and a manager that acts as authors would give them all
// that the other may do. The policies that do it are looked at again and again: who manages a cluster may change them.
type authors struct {
	client kubernetes.Interface
	state  atomic.Pointer[verdict]
}

type verdict struct{ err error }

// authorsWrongInterval is how often the policies are looked at while they are not as they should be, at least.
const authorsWrongInterval = 5 * time.Second

// The policies are looked at so often, with this pause, before a manager that cannot read them goes on without applications.
const (
	firstLooksMax   = 10
	firstLooksPause = 500 * time.Millisecond
)

var errNotLooked = errors.New("it is not known yet whether the API server records who writes applications")

// newAuthors looks at the policies for the first time.
func (m *Manager) newAuthors(ctx context.Context) (*authors, error) {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	w := &authors{client: client}
	w.state.Store(&verdict{errNotLooked})
	// A server that does not answer at this moment is asked again, before all applications are told that they are off.
	for range firstLooksMax {
		w.look(ctx)
		if !errors.Is(w.recorded(), errNotLooked) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(firstLooksPause):
		}
	}
	if err := w.recorded(); err != nil {
		m.log.Error("applications are off; batch jobs and workflows are not concerned", "error", err)
	}
	return w, nil
}

// recorded says why applications are off, or nil.
func (w *authors) recorded() error { return w.state.Load().err }

// run calls changed when recorded gives another answer than before, until ctx is done.
func (w *authors) run(ctx context.Context, m *Manager, changed func()) {
	for {
		wait := m.cfg.AuthorsInterval
		if w.recorded() != nil {
			wait = min(wait, authorsWrongInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		before := w.recorded()
		w.look(ctx)
		after := w.recorded()
		if ctx.Err() != nil || fmt.Sprint(before) == fmt.Sprint(after) {
			continue
		}
		if after != nil {
			m.log.Error("applications are off; batch jobs and workflows are not concerned", "error", after)
		} else {
			m.log.Info("applications act with the rights of their authors")
		}
		changed()
	}
}

// look compares the policies with those that this manager was built with.
func (w *authors) look(ctx context.Context) {
	var err error
	for _, want := range config.Policies() {
		if name := want.GetName(); name != config.AuthorsPolicy && name != config.AccountsPolicy {
			continue
		}
		if err = w.check(ctx, want); err != nil {
			break
		}
	}
	unknown := (*unknownError)(nil)
	if errors.As(err, &unknown) && !errors.Is(w.recorded(), errNotLooked) {
		return // what was known last stands
	}
	if unknown != nil {
		err = fmt.Errorf("%w: %w", errNotLooked, err)
	}
	if ctx.Err() == nil {
		w.state.Store(&verdict{err})
	}
}

// unknownError says that a policy could not be read, which says nothing about it.
type unknownError struct{ error }

func (e *unknownError) Unwrap() error { return e.error }

// lookTimeout bounds the reading of one policy.
const lookTimeout = 10 * time.Second

func (w *authors) check(ctx context.Context, want *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	admission := w.client.AdmissionregistrationV1()
	var there runtime.Object
	var err error
	switch name, o := want.GetName(), (metav1.GetOptions{}); want.GetKind() {
	case "MutatingAdmissionPolicy":
		there, err = admission.MutatingAdmissionPolicies().Get(ctx, name, o)
	case "MutatingAdmissionPolicyBinding":
		there, err = admission.MutatingAdmissionPolicyBindings().Get(ctx, name, o)
	case "ValidatingAdmissionPolicy":
		there, err = admission.ValidatingAdmissionPolicies().Get(ctx, name, o)
	case "ValidatingAdmissionPolicyBinding":
		there, err = admission.ValidatingAdmissionPolicyBindings().Get(ctx, name, o)
	}
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s %s, without which anybody could write an application in another's name: 'lockstep install' brings it, "+
			"to Kubernetes from 1.36 on; elsewhere only --applications-act-as-manager turns applications on, see docs/security.md", want.GetKind(), want.GetName())
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: 'lockstep install' gives the manager the rights that it needs", err)
	case err != nil:
		return &unknownError{fmt.Errorf("%s %s: %w", want.GetKind(), want.GetName(), err)}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(there)
	if err != nil {
		return err
	}
	if path := install.PolicyDiffers(object, want.Object); path != "" {
		return fmt.Errorf("%s %s is not as this version of Lockstep installs it (%s): run 'lockstep install'", want.GetKind(), want.GetName(), path)
	}
	return nil
}
