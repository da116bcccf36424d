package records

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// lastWrite keeps the last write of a tracker, for the test to answer.
type lastWrite struct {
	apiwriter.Writer
	verb   string
	object *oam.ResourceTracker
	patch  []byte
	done   func(apiwriter.Object, error)
}

func (w *lastWrite) Create(_ apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	w.verb, w.object, w.done = "create", o.(*oam.ResourceTracker), done
}

func (w *lastWrite) Patch(_ apiwriter.Meta, o apiwriter.Object, _ types.PatchType, data []byte, done func(apiwriter.Object, error)) {
	w.patch = data
	w.verb, w.object, w.done = "patch", o.(*oam.ResourceTracker), done
}

func (w *lastWrite) Delete(_ apiwriter.Meta, o apiwriter.Object, _ apiwriter.DeleteOptions, done func(error)) {
	w.verb, w.object, w.done = "delete", o.(*oam.ResourceTracker), func(_ apiwriter.Object, err error) { done(err) }
}

type keeping struct {
	k      Keeper
	w      *lastWrite
	shown  shown
	to     *Owner
	r      Tracker
	writes Writes
	now    time.Time
	posted []func()
	wakes  []time.Duration
}

func newKeeping() *keeping {
	x := &keeping{w: &lastWrite{}, shown: shown{}, now: time.Unix(1000, 0)}
	x.k = Keeper{Cache: x.shown, Writer: x.w, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return x.now }}
	x.to = &Owner{
		Key: types.NamespacedName{Namespace: "ns", Name: "shop"}, Name: "application/ns/shop",
		Post:      func(do func()) { x.posted = append(x.posted, do) },
		WakeAfter: func(d time.Duration) { x.wakes = append(x.wakes, d) },
	}
	x.r.loaded = true
	return x
}

// writeOf calls Keeper.Write, as a state that is complete or not.
func (x *keeping) writeOf(complete bool) {
	x.k.Write(x.to, &x.r, &x.writes, Written{UID: "uid", Generation: 1, Complete: complete})
}

// write calls Keeper.Write, and returns the verb of the write, or an empty string if there was
// none.
func (x *keeping) write() string {
	x.w.verb = ""
	x.k.Write(x.to, &x.r, &x.writes, Written{UID: "uid", Generation: 1})
	return x.w.verb
}

// answer answers the last write and delivers what was posted.
func (x *keeping) answer(o *oam.ResourceTracker, err error) {
	if o == nil {
		x.w.done(nil, err)
	} else {
		x.w.done(o, err)
	}
	for _, do := range x.posted {
		do()
	}
	x.posted = nil
}

func TestATrackerIsCreatedAndThenPatched(t *testing.T) {
	x := newKeeping()
	x.r.Dirty = true
	x.r.Resources = []oam.ManagedResource{{Component: "web"}}
	if verb := x.write(); verb != "create" || x.r.Dirty || x.w.object.Name != "shop-v1-ns" || len(x.w.object.Spec.ManagedResources) != 1 {
		t.Fatalf("%s of %+v", verb, x.w.object)
	}
	created := x.w.object.DeepCopy()
	if verb := x.write(); verb != "" {
		t.Fatalf("%s without an answer", verb)
	}
	created.ResourceVersion = "1"
	x.answer(created, nil)
	if verb := x.write(); verb != "patch" || x.w.object.ResourceVersion != "1" || x.r.TakeChange() != unchanged {
		t.Fatalf("then %s of version %q", verb, x.w.object.ResourceVersion)
	}
}

// TestATrackerNamesTheRevisionThatIsDeployed checks the label and the annotation by which other clients
// find the tracker of a revision: the label names the last revision that was deployed completely, and
// the annotation the publishVersion that is being deployed.
func TestATrackerNamesTheRevisionThatIsDeployed(t *testing.T) {
	x := newKeeping()
	add := func(name, version string) {
		x.r.Revisions = append(x.r.Revisions, Stored{Name: name, PublishVersion: version, Spec: &oam.ApplicationSpec{}})
	}
	written := func(complete bool) *oam.ResourceTracker {
		t.Helper()
		x.writeOf(complete)
		rt := x.w.object.DeepCopy()
		if x.w.verb == "patch" {
			patch, err := jsonpatch.DecodePatch(x.w.patch)
			if err != nil {
				t.Fatal(err)
			}
			before, _ := json.Marshal(rt)
			after, err := patch.Apply(before)
			if err != nil {
				t.Fatalf("%v: %s", err, x.w.patch)
			}
			rt = &oam.ResourceTracker{}
			if err := json.Unmarshal(after, rt); err != nil {
				t.Fatal(err)
			}
		}
		x.answer(rt, nil)
		return rt
	}
	is := func(rt *oam.ResourceTracker, label, version string) {
		t.Helper()
		got := rt.Annotations[oam.PublishVersionAnnotation]
		if rt.Labels[oam.AppRevisionLabel] != label || got != version || rt.Labels[oam.AppUIDLabel] != "uid" || rt.Annotations[apiwriter.CreatorAnnotation] == "" ||
			rt.Spec.Type != oam.ResourceTrackerTypeVersioned || rt.Spec.Compression.Type != oam.Uncompressed {
			t.Errorf("it is of %v %v, %s, packed as %q; want %s %s", rt.Labels, rt.Annotations, rt.Spec.Type, rt.Spec.Compression.Type, label, version)
		}
	}
	add("shop-v1", "")
	is(written(false), "shop-v1", "")
	add("shop-v2", "two")
	is(written(false), "shop-v1", "two")
	is(written(true), "shop-v2", "two")
	add("shop-v3", "")
	is(written(true), "shop-v3", "")
	add("a-name-that-is-longer-than-a-label-may-be-and-therefore-is-not-in-one-v4", "")
	is(written(true), "", "")
	x.r.Object.Labels, x.r.Object.Annotations = nil, nil // another client's doing
	add("shop-v5", "")
	x.writeOf(true)
	if !strings.Contains(string(x.w.patch), `"path":"/metadata/labels","value":{"app.oam.dev/appRevision":"shop-v5",`) {
		t.Errorf("the patch is %s", x.w.patch)
	}
}

// TestATrackerOfAnotherManagerIsTakenOver answers a write with content that was not written, as if
// another manager had written it.
func TestATrackerOfAnotherManagerIsTakenOver(t *testing.T) {
	x := newKeeping()
	x.write()
	theirs, err := pack(packed{Revisions: []Stored{{Name: "shop-v7", Number: 7, Spec: &oam.ApplicationSpec{}}}})
	if err != nil {
		t.Fatal(err)
	}
	rt := x.w.object.DeepCopy()
	rt.Spec.Compression, rt.Spec.ManagedResources = theirs, []oam.ManagedResource{{Component: "theirs"}}
	x.answer(rt, nil)
	if x.r.TakeChange() != Replaced || x.r.Latest().Name != "shop-v7" || x.r.Resources[0].Component != "theirs" {
		t.Errorf("%+v", x.r)
	}
	rt = rt.DeepCopy()
	rt.Spec.Compression = oam.Compression{Type: oam.Gzip, Data: "abc"}
	x.write()
	x.answer(rt, nil)
	if _, err := x.k.Load(x.to, &x.r, false); err == nil {
		t.Error("a tracker that cannot be read is no error")
	}
	if x.r.Latest().Name != "shop-v7" {
		t.Error("a tracker that cannot be read has replaced what was known")
	}
}

func TestATrackerThatTheWatchHasNotShownIsWaitedFor(t *testing.T) {
	x := newKeeping()
	x.write()
	x.answer(nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "resourcetrackers"}, "ns.shop"))
	if x.r.loaded || x.r.TakeChange() != Replaced {
		t.Error("the tracker is not loaded again")
	}
	if verb := x.write(); verb != "" || len(x.wakes) != 1 || x.wakes[0] != time.Second {
		t.Errorf("%q at once, wakes %v", verb, x.wakes)
	}
	x.now = x.now.Add(time.Second)
	if verb := x.write(); verb != "create" {
		t.Errorf("%q after the pause", verb)
	}
}

func TestAnApplicationOfTheSameNameInheritsNothing(t *testing.T) {
	x := newKeeping()
	x.r.Object = &oam.ResourceTracker{}
	x.r.Resources = []oam.ManagedResource{{Component: "web"}}
	x.k.Delete(x.to, &x.r, &x.writes)
	x.answer(nil, errors.New("refused"))
	if len(x.r.Resources) != 1 || len(x.wakes) != 1 {
		t.Errorf("after a refusal: %+v, wakes %v", x.r, x.wakes)
	}
	x.k.Delete(x.to, &x.r, &x.writes)
	x.answer(nil, nil)
	if x.r.TakeChange() != Deleted || x.r.Object != nil || len(x.r.Resources) != 0 || x.writes.Any() {
		t.Errorf("%+v", x.r)
	}
}

// TestNamesOfARefusedWriteAreNotStored checks that a tracker whose patch failed does not count as
// stored, so that no object is created that only the manager's memory names, and that the patch is
// repeated after a backoff.
func TestNamesOfARefusedWriteAreNotStored(t *testing.T) {
	x := newKeeping()
	x.r.Resources = []oam.ManagedResource{{Component: "web"}}
	x.write()
	if x.r.Stored() {
		t.Error("a tracker counts as stored before its create is answered")
	}
	x.answer(x.w.object.DeepCopy(), nil)
	if !x.r.Stored() {
		t.Error("a created tracker does not count as stored")
	}
	x.r.Resources = append(x.r.Resources, oam.ManagedResource{Component: "worker"})
	x.write()
	x.answer(nil, errors.New("refused"))
	if x.r.Stored() {
		t.Error("a tracker whose patch failed counts as stored")
	}
	if verb := x.write(); verb != "" {
		t.Errorf("%s during the backoff", verb)
	}
	x.now = x.now.Add(time.Minute)
	if verb := x.write(); verb != "patch" || len(x.w.object.Spec.ManagedResources) != 1 {
		t.Fatalf("%q after the backoff", verb)
	}
	stored := x.w.object.DeepCopy()
	x.answer(stored, nil)
	if !x.r.Stored() {
		t.Error("a tracker whose patch succeeded does not count as stored")
	}
}

func TestATrackerThatSomebodyHasDeletedIsCreatedAgain(t *testing.T) {
	x := newKeeping()
	x.r.Resources = []oam.ManagedResource{{Component: "web"}}
	x.write()
	x.answer(x.w.object.DeepCopy(), nil)
	x.write()
	x.answer(nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourcetrackers"}, "ns.shop"))
	if x.r.Stored() {
		t.Error("a tracker that does not exist counts as stored")
	}
	x.now = x.now.Add(time.Minute)
	if verb := x.write(); verb != "create" || len(x.w.object.Spec.ManagedResources) != 1 {
		t.Errorf("%q after the backoff", verb)
	}
}
