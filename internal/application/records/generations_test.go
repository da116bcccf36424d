package records

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// shown has the trackers that the watch has shown, by name.
type shown map[string]*oam.ResourceTracker

func (s shown) Get(_, name string) (*kubeclient.Raw, bool) {
	rt, ok := s[name]
	if !ok {
		return nil, false
	}
	return &kubeclient.Raw{ObjectMeta: rt.ObjectMeta}, true
}

func (s shown) ByIndex(_, app string) (out []*kubeclient.Raw) {
	for _, rt := range s {
		raw := &kubeclient.Raw{ObjectMeta: rt.ObjectMeta}
		if slices.Contains(TrackerIndexes()[ByApplication](raw), app) {
			out = append(out, raw)
		}
	}
	return out
}

func (s shown) Unpack(raw *kubeclient.Raw) (*oam.ResourceTracker, error) {
	return s[raw.Name].DeepCopy(), nil
}

// carry answers the last write as an API server would, and lets the watch show the result.
func (x *keeping) carry(t *testing.T) {
	t.Helper()
	rt := x.w.object.DeepCopy()
	switch x.w.verb {
	case "patch":
		patch, err := jsonpatch.DecodePatch(x.w.patch)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := json.Marshal(x.shown[rt.Name])
		after, err := patch.Apply(before)
		if err != nil {
			t.Fatalf("%v: %s", err, x.w.patch)
		}
		rt = &oam.ResourceTracker{}
		if err := json.Unmarshal(after, rt); err != nil {
			t.Fatal(err)
		}
		rt.ResourceVersion += "+"
	case "create":
		rt.UID, rt.ResourceVersion = types.UID("uid of "+rt.Name), "1"
	case "delete":
		if len(x.shown[rt.Name].Finalizers) == 0 {
			delete(x.shown, rt.Name)
			x.answer(nil, nil)
			return
		}
		rt = x.shown[rt.Name].DeepCopy()
		rt.DeletionTimestamp, rt.ResourceVersion = &metav1.Time{Time: x.now}, rt.ResourceVersion+"+"
	}
	if rt.DeletionTimestamp != nil && len(rt.Finalizers) == 0 {
		delete(x.shown, rt.Name)
	} else {
		x.shown[rt.Name] = rt
	}
	x.answer(rt, nil)
}

// names returns what the watch has shown: NAME of the record, NAME(OBJECT ...) of what remains.
func (x *keeping) names() string {
	var out []string
	for name, rt := range x.shown {
		if _, has := oam.RecordNumber(rt); !has {
			name += "("
			for _, m := range rt.Spec.ManagedResources {
				name += m.Name
			}
			name += ")"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func object(name string) oam.ManagedResource {
	m := oam.ManagedResource{}
	m.APIVersion, m.Kind, m.Namespace, m.Name = "v1", "ConfigMap", "ns", name
	return m
}

// generation writes the tracker of a generation with these objects.
func (x *keeping) generation(t *testing.T, n int64, objects ...string) {
	t.Helper()
	x.r.Resources = nil
	for _, name := range objects {
		x.r.Resources = append(x.r.Resources, object(name))
	}
	x.k.Write(x.to, &x.r, &x.writes, Written{UID: "uid", Generation: n, Complete: true})
	x.carry(t)
}

func (x *keeping) is(t *testing.T, want string) {
	t.Helper()
	if got := x.names(); got != want {
		t.Errorf("there are %q, want %q", got, want)
	}
}

func kept(names ...string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		m := object(name)
		out[RefKey(RefOf(&m))] = true
	}
	return out
}

// settle calls Settle until it writes nothing more.
func (x *keeping) settle(t *testing.T, objects ...string) {
	t.Helper()
	for range 10 {
		x.w.verb = ""
		if x.k.Settle(x.to, &x.r, &x.writes, kept(objects...)); x.w.verb == "" {
			return
		}
		x.carry(t)
	}
	t.Fatal("it does not end")
}

func TestAGenerationHasATracker(t *testing.T) {
	x := newKeeping()
	x.generation(t, 1, "a")
	x.is(t, "shop-v1-ns")
	x.generation(t, 1, "a", "b")
	x.is(t, "shop-v1-ns")
	x.generation(t, 2, "a", "b")
	x.is(t, "shop-v1-ns shop-v2-ns")
	if !x.k.Unsettled(x.to, &x.r) {
		t.Error("a tracker of an earlier generation is settled")
	}
	x.settle(t)
	x.is(t, "shop-v2-ns")
	if x.k.Unsettled(x.to, &x.r) {
		t.Error("a single tracker is unsettled")
	}
	x.r.Revisions = []Stored{{Name: "shop-v3", PublishVersion: "alpha", Spec: &oam.ApplicationSpec{}}}
	x.generation(t, 2, "a")
	x.settle(t)
	x.is(t, "shop-alpha-ns")
	x.generation(t, 7, "a") // the version is pinned
	x.is(t, "shop-alpha-ns")
	x.r.Revisions[0].PublishVersion = "No Name"
	x.generation(t, 7, "a")
	x.settle(t)
	x.is(t, "shop-v7-ns")
}

// TestATrackerIsFoundAgain checks which tracker a manager goes on from that has just started.
func TestATrackerIsFoundAgain(t *testing.T) {
	x := newKeeping()
	x.generation(t, 9, "a")
	x.generation(t, 10, "a", "b")
	x.is(t, "shop-v10-ns shop-v9-ns")
	x.shown["shop-v10-ns"].Spec.Type = oam.ResourceTrackerTypeVersioned
	x.r = Tracker{}
	if ok, err := x.k.Load(x.to, &x.r, false); !ok || err != nil || x.r.Object.Name != "shop-v10-ns" || len(x.r.Resources) != 2 {
		t.Fatalf("%v %v: %+v", ok, err, x.r.Object)
	}
	x.settle(t)
	x.is(t, "shop-v10-ns")
	// Another manager writes a newer one, which the watch shows late.
	other := x.shown["shop-v10-ns"].DeepCopy()
	other.Name, other.UID, other.Annotations = "shop-v11-ns", "other", map[string]string{oam.RecordAnnotation: "3", apiwriter.CreatorAnnotation: x.to.Name}
	other.Spec.ManagedResources = append(other.Spec.ManagedResources, object("c"))
	x.shown[other.Name] = other
	if ok, err := x.k.Load(x.to, &x.r, false); !ok || err != nil || x.r.TakeChange() != Replaced || x.r.Object.Name != "shop-v11-ns" || !x.r.Stored() {
		t.Fatalf("%v %v: %+v", ok, err, x.r.Object)
	}
	// Two managers wrote one at the same time, each with objects of its own.
	twin := other.DeepCopy()
	twin.Name, twin.UID, twin.Spec.ManagedResources = "shop-v12-ns", "twin", []oam.ManagedResource{object("d")}
	x.shown[twin.Name] = twin
	if ok, err := x.k.Load(x.to, &x.r, false); !ok || err != nil || len(x.r.Resources) != 4 || x.r.Stored() {
		t.Fatalf("%v %v: %+v", ok, err, x.r.Resources)
	}
}

// TestTheFormerTrackerIsReadAndReplaced checks a tracker with the name that trackers had before there
// was one for each generation.
func TestTheFormerTrackerIsReadAndReplaced(t *testing.T) {
	x := newKeeping()
	x.generation(t, 1, "a")
	former := x.shown["shop-v1-ns"]
	delete(x.shown, former.Name)
	former.Name = "ns.shop"
	delete(former.Annotations, oam.RecordAnnotation)
	x.shown[former.Name] = former
	x.r = Tracker{}
	if ok, err := x.k.Load(x.to, &x.r, false); !ok || err != nil || len(x.r.Resources) != 1 {
		t.Fatalf("%v %v: %+v", ok, err, x.r)
	}
	x.generation(t, 1, "a", "b")
	x.settle(t)
	x.is(t, "ns.shop")
	x.generation(t, 2, "a")
	x.settle(t)
	x.is(t, "shop-v2-ns")
}

// TestNamesOfOthersAreLeftToThem checks that a tracker gets another name if its name belongs to a
// tracker of another Application or controller, which stays unchanged.
func TestNamesOfOthersAreLeftToThem(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"of shop-v1 in another namespace": {oam.AppNameLabel: "shop", oam.AppNamespaceLabel: "v1-ns"},
		"of another controller":           {oam.AppNameLabel: "shop", oam.AppNamespaceLabel: "ns"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newKeeping()
			theirs := &oam.ResourceTracker{ObjectMeta: metav1.ObjectMeta{Name: "shop-v1-ns", UID: "theirs", ResourceVersion: "9", Labels: labels}}
			x.shown[theirs.Name] = theirs.DeepCopy()
			if ok, err := x.k.Load(x.to, &x.r, false); !ok || err != nil || x.r.Object != nil {
				t.Fatalf("%v %v: %+v", ok, err, x.r.Object)
			}
			x.generation(t, 1, "a")
			x.settle(t)
			x.is(t, "ns.shop.r1 shop-v1-ns()")
			x.generation(t, 2, "a")
			x.settle(t)
			x.is(t, "shop-v1-ns() shop-v2-ns")
			if x.k.DeleteOthers(x.to, &x.r, &x.writes) {
				t.Error("the tracker of another application is deleted")
			}
		})
	}
}

// TestTrackersOfKeptObjectsRemain checks the trackers of objects that stay although they have left the
// spec: each is in the tracker of the last generation that had it, and is condemned by its deletion.
func TestTrackersOfKeptObjectsRemain(t *testing.T) {
	x := newKeeping()
	x.generation(t, 1, "a")
	x.generation(t, 2, "a")
	x.settle(t)
	x.is(t, "shop-v2-ns")
	x.generation(t, 3, "a", "b")
	x.settle(t, "a")
	x.is(t, "shop-v2-ns(a) shop-v3-ns")
	x.generation(t, 4, "a", "b", "c")
	x.settle(t, "a", "b")
	x.is(t, "shop-v2-ns(a) shop-v3-ns(b) shop-v4-ns")
	if x.k.Unsettled(x.to, &x.r) {
		t.Error("trackers that remain are unsettled")
	}
	for name, finalizers := range map[string][]string{"shop-v2-ns": {oam.TrackerFinalizer}, "shop-v3-ns": {oam.TrackerFinalizer}, "shop-v4-ns": nil} {
		if rt := x.shown[name]; !slices.Equal(rt.Finalizers, finalizers) || rt.Spec.ApplicationGeneration == 0 {
			t.Errorf("%s has %q", name, rt.Finalizers)
		}
	}
	if c := x.k.Condemned(x.to, &x.r); len(c) != 0 {
		t.Errorf("condemned are %v", c)
	}
	// A client deletes one.
	x.shown["shop-v3-ns"].DeletionTimestamp = &metav1.Time{Time: x.now}
	x.shown["shop-v3-ns"].ResourceVersion = "deleted"
	if c := x.k.Condemned(x.to, &x.r); len(c) != 1 || !c["v1/ConfigMap/ns/b"] || !x.k.Unsettled(x.to, &x.r) {
		t.Errorf("condemned are %v", c)
	}
	x.settle(t, "a", "b") // b is still there
	x.is(t, "shop-v2-ns(a) shop-v3-ns(b) shop-v4-ns")
	x.settle(t, "a")
	x.is(t, "shop-v2-ns(a) shop-v4-ns")
	// The last kept object goes, and the Application.
	x.settle(t)
	x.is(t, "shop-v4-ns")
	x.generation(t, 5, "a")
	x.settle(t, "c")
	x.is(t, "shop-v4-ns(c) shop-v5-ns")
	for x.k.DeleteOthers(x.to, &x.r, &x.writes) {
		x.carry(t)
	}
	x.is(t, "shop-v5-ns")
	// A version that is published again has a tracker that remains.
	x.r.Revisions = []Stored{{Name: "shop-v6", PublishVersion: "alpha", Spec: &oam.ApplicationSpec{}}}
	x.generation(t, 6, "a")
	x.settle(t)
	x.r.Revisions[0].PublishVersion = "beta"
	x.generation(t, 7, "a", "b")
	x.settle(t, "a")
	x.is(t, "shop-alpha-ns(a) shop-beta-ns")
	x.r.Revisions[0].PublishVersion = "alpha"
	x.generation(t, 8, "a", "b")
	x.settle(t)
	x.is(t, "shop-alpha-ns")
	if rt := x.shown["shop-alpha-ns"]; len(rt.Finalizers) != 0 || rt.Annotations[oam.RecordAnnotation] == "" {
		t.Errorf("it is %+v", rt.ObjectMeta)
	}
}
