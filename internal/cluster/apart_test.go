package cluster

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/panics"
)

// TestAnObjectThatWasSetApartIsNotHandedOverAgain checks that handlers do not see an object that
// was set apart when the watch returns the condition written about it, and see it again after a
// user changed it.
func TestAnObjectThatWasSetApartIsNotHandedOverAgain(t *testing.T) {
	guard, err := panics.New(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	kind := newKind(nil, "configmaps", &corev1.ConfigMap{}, nil, nil)
	kind.Guard(guard)
	told := 0
	fails := func(*corev1.ConfigMap) { told++; panic("a handler's mistake") }
	kind.Follow(fails, func(*corev1.ConfigMap) {})
	show := func(version, value string, want int, why string) {
		t.Helper()
		err := kind.put(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", UID: "u", ResourceVersion: version}, Data: map[string]string{"k": value},
		})
		if err != nil || told != want {
			t.Errorf("%s: the handler was told %d times, want %d; %v", why, told, want, err)
		}
		if _, found := kind.Get("n", "a"); found || kind.Malformed("n", "a") == nil {
			t.Errorf("%s: it is not apart", why)
		}
	}
	show("1", "x", 1, "at first")
	show("2", "x", 1, "another version of the same")
	show("3", "y", 2, "changed")
}
