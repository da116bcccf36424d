package apiwriter

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		"the first":            {nil, forbidden(role), 0, again},
		"one soon after":       {nil, forbidden(role), forbiddenMax - 1, again},
		"one long after":       {nil, forbidden(role), forbiddenMax, refused},
		"an author's":          {&Identity{User: "ann"}, forbidden(role), 0, refused},
		"admission's":          {nil, forbidden(errors.New("exceeded quota: q, requested: pods=1")), 0, refused},
		"one of another cause": {nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil), 0, refused},
	} {
		x, now := &write{as: c.as}, time.Unix(1000, 0)
		x.denied(c.err, now)
		now = now.Add(c.after)
		if got := classify(c.err, x.denied(c.err, now)).verdict; got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
}
