package localtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// pollFirst and pollMost bound the growing intervals of Await.
const (
	pollFirst = 10 * time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// patience is how long Eventually waits. It is long because a slow machine is no failure: only
// tests that fail wait for the end of it.
const patience = 4 * time.Minute

// Await waits until f returns nil. It returns f's last error if that takes longer than within or
// ctx is done.
func Await(ctx context.Context, within time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for pause := pollFirst; ; pause = min(pause*3/2, pollMost) {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Eventually waits until f returns nil, and fails the test if that takes longer than patience.
func Eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	if err := Await(t.Context(), patience, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Namespace creates a namespace with a generated name.
func Namespace(t testing.TB, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// NamespaceForPods creates a namespace in which pods can be created: they need the service account
// that kube-controller-manager creates there.
func NamespaceForPods(t testing.TB, client kubernetes.Interface) string {
	t.Helper()
	ns := Namespace(t, client)
	Eventually(t, "the service account of namespace "+ns, func() error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return ns
}

// Log returns a logger that writes everything to stderr in a verbose test run, and nothing
// otherwise.
func Log() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// UntilAllowed waits until user may do verb on resource ("applications.core.oam.dev", "pods") in
// namespace; "" means all namespaces. The API server's authorizer knows a new role binding only a
// moment after its creation.
func UntilAllowed(t testing.TB, client kubernetes.Interface, user, verb, resource, namespace string) {
	t.Helper()
	of := schema.ParseGroupResource(resource)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: of.Group, Resource: of.Resource,
			Namespace: namespace}}}
	Eventually(t, user+"'s rights", func() error {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("%s may not %s %s", user, verb, resource)
		}
		return err
	})
}
