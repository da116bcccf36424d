package informer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func TestQueueIn(t *testing.T) {
	s, err := NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	namespace := func(name, queue string) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"kept": "no"}, Annotations: map[string]string{"kept": "no"},
		}}
		if queue != "" {
			n.Annotations[schedulingv1beta1.QueueNameAnnotation] = queue
		}
		trimNamespace(n)
		if n.Annotations["kept"]+n.Labels["kept"] != "" {
			t.Errorf("what nobody reads is kept: %v", n.ObjectMeta)
		}
		return n
	}
	for _, n := range []*corev1.Namespace{namespace("team", "q"), namespace("plain", "")} {
		if err := s.Namespaces.Store().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	for sentence, tc := range map[string]struct {
		namespace, named, want, field string
		known                         bool
	}{
		"the namespace names it":                {"team", "", "q", "metadata.annotations[scheduling.volcano.sh/queue-name] of namespace team", true},
		"the default queue is none":             {"team", "default", "q", "metadata.annotations[scheduling.volcano.sh/queue-name] of namespace team", true},
		"the object names it":                   {"team", "own", "own", "spec.queue", true},
		"neither does":                          {"plain", "", "default", "spec.queue", true},
		"the namespace is not known yet":        {"new", "default", "default", "spec.queue", false},
		"then it does not matter to others":     {"new", "own", "own", "spec.queue", true},
		"both are the same":                     {"team", "q", "q", "spec.queue", true},
		"a plain namespace and the default one": {"plain", "default", "default", "spec.queue", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			queue, known := s.QueueIn(tc.namespace, tc.named)
			if queue != tc.want || known != tc.known {
				t.Errorf("%s, known %v; want %s, %v", queue, known, tc.want, tc.known)
			}
			if field := QueueField(tc.namespace, tc.named, queue, "spec.queue"); field != tc.field {
				t.Errorf("named by %s, want %s", field, tc.field)
			}
		})
	}
}

// TestNamespacesThatAppearWakeWhatWaits checks that only namespaces which somebody asked about wake
// others when they appear: a manager that starts sees all namespaces appear.
func TestNamespacesThatAppearWakeWhatWaits(t *testing.T) {
	s, err := NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	var woken []string
	s.FollowQueues(func(namespace string) { woken = append(woken, namespace) })
	h := s.Namespaces.handlers[0]
	named := func(name, queue string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{schedulingv1beta1.QueueNameAnnotation: queue}}}
	}
	h.Added(named("a", "q"))
	s.QueueIn("b", "")
	h.Added(named("b", "q"))
	h.Updated(named("b", "q"), named("b", "q"))
	h.Updated(named("a", "q"), named("a", "other"))
	h.Deleted(named("b", "q"))
	h.Added(named("b", "q"))
	if len(woken) != 2 || woken[0] != "b" || woken[1] != "a" {
		t.Errorf("woken: %v", woken)
	}
}

func TestLimitedNamespaces(t *testing.T) {
	s, err := NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	for name, labels := range map[string]map[string]string{"limited": {argov1alpha1.LabelParallelismLimit: "2"}, "plain": nil} {
		if err := s.Namespaces.Store().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
			t.Fatal(err)
		}
	}
	if list := s.LimitedNamespaces(); len(list) != 1 || list[0].Name != "limited" {
		t.Errorf("%v", list)
	}
}
