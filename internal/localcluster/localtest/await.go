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

// Await looks again and again in growing intervals between these.
const (
	pollFirst = 10 * time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// Await waits until f returns nil, and returns f's last error when that takes longer than within, or ctx is done.
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

// Eventually waits until f returns nil, and ends the test when that takes longer than within.
func Eventually(t testing.TB, within time.Duration, what string, f func() error) {
	t.Helper()
	if err := Await(t.Context(), within, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Namespace makes a namespace with a name of its own.
func Namespace(t testing.TB, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// NamespaceForPods makes a namespace in which pods can be created: they need the service account that
// kube-controller-manager puts there.
func NamespaceForPods(t testing.TB, client kubernetes.Interface) string {
	t.Helper()
	ns := Namespace(t, client)
	Eventually(t, time.Minute, "the service account of namespace "+ns, func() error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return ns
}

// Log writes everything to stderr in a verbose run of the tests, and else nothing.
func Log() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// UntilAllowed waits until user may do verb to resource ("applications.core.oam.dev", "pods") in namespace, "" being all: the
// API server's authorizer learns of a new role binding a moment after whoever created it.
func UntilAllowed(t testing.TB, client kubernetes.Interface, user, verb, resource, namespace string) {
	t.Helper()
	of := schema.ParseGroupResource(resource)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: of.Group, Resource: of.Resource, Namespace: namespace}}}
	Eventually(t, time.Minute, user+"'s rights", func() error {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("%s may not %s %s", user, verb, resource)
		}
		return err
	})
}
