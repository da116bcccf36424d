package controller

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
)

// desk is a controller whose turns a test makes by hand. Its informers read nothing: the test puts
// objects into their caches. Its writer keeps the writes until the test answers them.
type desk struct {
	apiwriter.Writer
	*Controller
	testing.TB
	clock  *clocktesting.FakeClock
	key    types.NamespacedName
	writes []keptWrite
}

type keptWrite struct {
	what   string // reason and name
	answer func(apiwriter.Object, error)
}

func newDesk(t testing.TB, config Config) *desk {
	t.Helper()
	at := &rest.Config{Host: "http://none"}
	informers, err := informer.NewSet(at)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{TB: t, clock: clocktesting.NewFakeClock(time.Unix(1_900_000_000, 0)), key: types.NamespacedName{Namespace: "ns", Name: "w"}}
	config.Informers, config.Client, config.Writer, config.Clock = informers, kubernetes.NewForConfigOrDie(at), d, d.clock
	config.Evaluators = noEvaluators{}
	if d.Controller, err = New(config); err != nil {
		t.Fatal(err)
	}
	return d
}

type noEvaluators struct{ Evaluators }

func (d *desk) keep(m apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	d.writes = append(d.writes, keptWrite{m.Reason + " " + o.GetName(), done})
}

func (d *desk) Latency() time.Duration { return 0 }

func (d *desk) Create(m apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	d.keep(m, o, done)
}

func (d *desk) Patch(m apiwriter.Meta, o apiwriter.Object, _ types.PatchType, _ []byte, done func(apiwriter.Object, error)) {
	d.keep(m, o, done)
}

func (d *desk) PatchVersion(m apiwriter.Meta, o apiwriter.Object, _ bool, _ []byte, done func(apiwriter.Object, error)) {
	d.keep(m, o, done)
}

func (d *desk) Delete(m apiwriter.Meta, o apiwriter.Object, _ apiwriter.DeleteOptions, _ func(error)) {
	d.keep(m, o, nil)
}

// expect compares the writes without an answer.
func (d *desk) expect(want ...string) {
	d.Helper()
	var got []string
	for _, w := range d.writes {
		got = append(got, w.what)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.Fatalf("the writes are %q, want %q", got, want)
	}
}

// answer answers the first write of this kind.
func (d *desk) answer(what string, o apiwriter.Object, err error) {
	d.Helper()
	for i, w := range d.writes {
		if w.what == what {
			d.writes = append(d.writes[:i:i], d.writes[i+1:]...)
			w.answer(o, err)
			return
		}
	}
	d.Fatalf("no write %s in %v", what, d.writes)
}

// show puts a version of the workflow into the cache and makes its turn.
func (d *desk) show(version, manifest string) {
	d.Helper()
	w := &wf.Workflow{}
	if err := yaml.UnmarshalStrict([]byte(manifest), w); err != nil {
		d.Fatal(err)
	}
	w.Namespace, w.Name, w.UID, w.ResourceVersion = d.key.Namespace, d.key.Name, cmp.Or(w.UID, "uid"), version
	if err := d.Informers.Workflows.Store().Add(w); err != nil {
		d.Fatal(err)
	}
	d.loop.Take(d.key)
}

// pod returns the pod of a node in the workflow with UID owner.
func (d *desk) pod(node, template string, owner types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.key.Namespace, Name: wf.PodName("w", node, template), UID: types.UID(node),
		Annotations: map[string]string{wf.AnnotationNodeID: wf.NodeID("w", node)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: workflowAPIVersion, Kind: "Workflow", Name: "w", UID: owner, Controller: ptr.To(true),
		}},
	}}
}

// end shows the pod of a node as ended, without a turn.
func (d *desk) end(node string) {
	d.Helper()
	p := d.pod(node, "pod", "uid")
	p.Status.Phase = corev1.PodSucceeded
	if err := d.Informers.Pods.Store().Add(p); err != nil {
		d.Fatal(err)
	}
	d.podSeen(p, false)
}
