package apiwriter

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestBackoffGrowsAndObeysTheServer(t *testing.T) {
	for attempts := range 20 {
		full := backoffMax
		if attempts < 8 {
			full = min(backoffMin<<attempts, backoffMax)
		}
		for range 100 {
			if d := backoff(attempts, 0); d < full/2 || d > full {
				t.Fatalf("after %d attempts %s, want between %s and %s", attempts, d, full/2, full)
			}
			if d := backoff(attempts, 20*time.Second); d < 20*time.Second || d > 25*time.Second {
				t.Fatalf("after %d attempts and Retry-After 20: %s", attempts, d)
			}
			if d := backoff(attempts, time.Hour); d > time.Hour/2 {
				t.Fatalf("after %d attempts and Retry-After 3600: %s", attempts, d)
			}
		}
	}
}

// TestAServerThatStartsForbidsForAMoment checks that a write is retried for some time if the
// manager's own rights do not allow it, because a server that has not yet read the cluster's roles
// forbids everything. Every other refusal is final.
func TestAServerThatStartsForbidsForAMoment(t *testing.T) {
	role := errors.New(`User "system:serviceaccount:lockstep-system:lockstep-manager" cannot create resource "pods" in API group "" in the namespace "n"`)
	forbidden := func(why error) error { return apierrors.NewForbidden(corev1.Resource("pods"), "p", why) }
	for name, c := range map[string]struct {
		as    *Identity
		err   error
		after time.Duration // since the first refusal
		want  verdict
	}{
		"the first":            {nil, forbidden(role), 0, retryLater},
		"one soon after":       {nil, forbidden(role), kubeclient.ForbiddenMax - 1, retryLater},
		"one long after":       {nil, forbidden(role), kubeclient.ForbiddenMax, refused},
		"an author's":          {&Identity{User: "ann"}, forbidden(role), 0, refused},
		"admission's":          {nil, forbidden(errors.New("exceeded quota: q, requested: pods=1")), 0, refused},
		"one of another cause": {nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil), 0, refused},
	} {
		x, now := &write{as: c.as}, time.Unix(1000, 0)
		x.deniedForNow(c.err, now)
		now = now.Add(c.after)
		if got := classify(c.err, x.deniedForNow(c.err, now)).verdict; got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
}

// TestAWriteThatIsForbiddenForAMomentIsMade checks that a write succeeds if the manager gets the
// right to it after the first attempt, as from a server that has just read the cluster's roles.
func TestAWriteThatIsForbiddenForAMomentIsMade(t *testing.T) {
	const user = "late"
	b := newBench(t, func(c *Config) {
		c.REST = rest.CopyConfig(c.REST)
		c.REST.Impersonate.UserName = user
	}).run()
	o := newOutcomes()
	b.Create(test, b.pod("p", "uid"), o.of("create"))
	localtest.Eventually(t, "the first attempt", func() error {
		if b.requests("create", "pods") == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	_, err := b.client.RbacV1().RoleBindings(b.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.flush()
	if err := o.errs["create"]; err != nil {
		t.Error(err)
	}
}
