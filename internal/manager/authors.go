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
	"lockstep.dev/lockstep/internal/application/author"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// authors checks that the API server has the admission policies that record who writes applications
// and that check who names a service account in one. Without them any user could claim that another
// user wrote an application, and a manager that acts as the author would give it all rights of that
// user. The policies are checked repeatedly, because cluster administrators may change them.
type authors struct {
	client kubernetes.Interface
	state  atomic.Pointer[verdict]
	// silent is when checks began to fail without an answer; zero if the last check was answered.
	silent time.Time
}

// verdict is the result of a check: the reason why applications are off, or nil.
type verdict struct{ err error }

const (
	// authorsWrongInterval is the maximum interval between checks while the policies are wrong, or
	// the last check was not answered.
	authorsWrongInterval = 5 * time.Second
	// firstLooksInterval is the interval between checks until the first answer.
	firstLooksInterval = 500 * time.Millisecond
	// silentMax is how long applications wait for the first answer before an error is reported.
	silentMax = 30 * time.Second
)

var errNotLooked = errors.New("it cannot be seen whether the API server records who writes applications")

// newAuthors returns an authors that has checked the policies once.
func (m *Manager) newAuthors(ctx context.Context) (*authors, error) {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return nil, err
	}
	w := &authors{client: client}
	w.state.Store(&verdict{author.ErrNotKnown})
	w.look(ctx)
	if err := w.recorded(); err != nil && !errors.Is(err, author.ErrNotKnown) {
		m.log.Error("applications are off; batch jobs and workflows are not concerned", "error", err)
	}
	return w, nil
}

// recorded returns the reason why applications are off, or nil. Until the first answer, the error
// wraps author.ErrNotKnown.
func (w *authors) recorded() error { return w.state.Load().err }

// run checks the policies until ctx is done, and calls changed when the result of recorded changes.
func (w *authors) run(ctx context.Context, m *Manager, changed func()) {
	for {
		wait := m.cfg.AuthorsInterval
		switch {
		case errors.Is(w.recorded(), author.ErrNotKnown):
			wait = min(wait, firstLooksInterval)
		case w.recorded() != nil || !w.silent.IsZero():
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
		if errors.Is(after, author.ErrNotKnown) {
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

// look compares the policies with those built into this manager.
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
	if ctx.Err() == nil {
		w.decide(err, time.Now())
	}
}

// decide records the result of a check: nil, the reason why applications are off, or an
// unknownError.
func (w *authors) decide(err error, now time.Time) {
	unknown := (*unknownError)(nil)
	if !errors.As(err, &unknown) {
		w.silent = time.Time{}
		w.state.Store(&verdict{err})
		return
	}
	if w.silent.IsZero() {
		w.silent = now
	}
	last, waited := w.recorded(), now.Sub(w.silent)
	first := errors.Is(last, author.ErrNotKnown) || errors.Is(last, errNotLooked)
	switch {
	case apierrors.IsForbidden(err) && waited >= kubeclient.TransientMax(err): // this is an answer
		w.state.Store(&verdict{err})
	case first && waited >= silentMax:
		w.state.Store(&verdict{fmt.Errorf("%w: %w", errNotLooked, err)})
	}
	// Otherwise the last known result remains.
}

// unknownError reports that a policy could not be read, which says nothing about the policy.
type unknownError struct{ error }

func (e *unknownError) Unwrap() error { return e.error }

// lookTimeout is the timeout of reading one policy.
const lookTimeout = 10 * time.Second

// check compares one policy with the server's. It returns an unknownError if it cannot be read.
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
		return fmt.Errorf("there is no %s %s, without which anybody could write an application in another's name: "+
			"'lockstep install' brings it, "+
			"to Kubernetes from 1.36 on; elsewhere only --applications-act-as-manager turns applications on, see "+
			"docs/security.md", want.GetKind(), want.GetName())
	case apierrors.IsForbidden(err):
		return &unknownError{fmt.Errorf("%w: 'lockstep install' gives the manager the rights that it needs", err)}
	case err != nil:
		return &unknownError{fmt.Errorf("%s %s: %w", want.GetKind(), want.GetName(), err)}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(there)
	if err != nil {
		return err
	}
	if path := install.PolicyDiffers(object, want.Object); path != "" {
		return fmt.Errorf("%s %s is not as this version of Lockstep installs it (%s): run 'lockstep install'", want.GetKind(),
			want.GetName(), path)
	}
	return nil
}
