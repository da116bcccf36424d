package manager

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// authorsRecorded fails where the API server does not record applications' authors. There anybody could say that an
// application was written by anybody else, and a manager that acts as authors would give them all that the other may do.
func (m *Manager) authorsRecorded(ctx context.Context) error {
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	admission := client.AdmissionregistrationV1()
	for _, needed := range []struct {
		kind string
		get  func(context.Context, string, metav1.GetOptions) error
	}{
		{"MutatingAdmissionPolicy", got(admission.MutatingAdmissionPolicies().Get)},
		{"MutatingAdmissionPolicyBinding", got(admission.MutatingAdmissionPolicyBindings().Get)},
		{"ValidatingAdmissionPolicy", got(admission.ValidatingAdmissionPolicies().Get)},
		{"ValidatingAdmissionPolicyBinding", got(admission.ValidatingAdmissionPolicyBindings().Get)},
	} {
		err := needed.get(ctx, config.AuthorsPolicy, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("manager: --multi-tenant: there is no %s %s, without which anybody could write an application in another's name: "+
				"'lockstep install --multi-tenant' brings it, to Kubernetes from 1.36 on", needed.kind, config.AuthorsPolicy)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("manager: --multi-tenant: %w: 'lockstep install --multi-tenant' gives the manager the rights that it needs", err)
		case err != nil:
			return fmt.Errorf("manager: --multi-tenant: %w", err)
		}
	}
	return nil
}

// got calls a client's Get for its error alone.
func got[T any](get func(context.Context, string, metav1.GetOptions) (T, error)) func(context.Context, string, metav1.GetOptions) error {
	return func(ctx context.Context, name string, opts metav1.GetOptions) error {
		_, err := get(ctx, name, opts)
		return err
	}
}
