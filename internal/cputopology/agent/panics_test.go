package agent

import (
	"io"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// TestAPanicBesidesAPassConcernsOnePod covers panics outside of passes: the container runtime's
// requests and the watch's pods are handled by goroutines of their own.
func TestAPanicBesidesAPassConcernsOnePod(t *testing.T) {
	failpoint.Arm(t, func(part, key string) {
		if part == "containers" && key == "bad/c" || part == "watch" && key == "ns/bad" {
			panic("a failpoint")
		}
	})
	guard, err := panics.New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{guard: guard}
	wish := desired.PodState{Containers: map[string]desired.Container{"c": {CPUs: cpuset.Of(1)}}}
	a.offer.Store(&desired.State{Pods: map[string]desired.PodState{"good": wish, "bad": wish}})
	if got, known := a.want("good", "c", nil); !known || got.CPUs.String() != "1" {
		t.Errorf("the good container is to have %v, %v", got, known)
	}
	if got, known := a.want("bad", "c", nil); known {
		t.Errorf("the bad container is to have %v", got)
	}

	v := &view{guard: guard}
	for _, name := range []string{"good", "bad"} {
		kept, err := v.trim(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u", ResourceVersion: "1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		p := kept.(*corev1.Pod)
		if p.Name != name || p.UID != "u" || p.ResourceVersion != "1" || len(p.Spec.Containers) == 0 != (name == "bad") {
			t.Errorf("of %s there is left: %v", name, p)
		}
	}
}
