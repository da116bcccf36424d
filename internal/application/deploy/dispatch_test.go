package deploy

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/kubeclient"
)

var configMap = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

// writer records the writes that it is given. They are answered by the test.
type writer struct {
	apiwriter.Writer
	asked   []string
	created []apiwriter.Object
	answers []func(apiwriter.Object, error)
}

func (w *writer) note(verb string, o apiwriter.Object, done func(apiwriter.Object, error)) {
	w.asked = append(w.asked, verb+" "+o.GetName())
	w.created = append(w.created, o)
	w.answers = append(w.answers, done)
}

func (w *writer) Create(_ apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	w.note("create", o, done)
}

func (w *writer) Patch(_ apiwriter.Meta, o apiwriter.Object, _ types.PatchType, data []byte, done func(apiwriter.Object, error)) {
	w.note("patch", o, done)
	w.asked[len(w.asked)-1] += " " + string(data)
}

func (w *writer) Delete(_ apiwriter.Meta, o apiwriter.Object, _ apiwriter.DeleteOptions, done func(error)) {
	w.note("delete", o, func(_ apiwriter.Object, err error) { done(err) })
}

// world is one Application whose plan has loose ConfigMaps, and a cluster without a server.
type world struct {
	*testing.T
	w      *writer
	target *objects.Target
	d      *Deployer
	a      *State
	now    time.Time
	posted []func()
	wakes  []time.Duration
}

func newWorld(t *testing.T, resources ...plan.Resource) *world {
	x := &world{T: t, w: &writer{}, now: time.Unix(1_700_000_000, 0)}
	x.target = objects.NewFake("", x.w, configMap)
	x.d = &Deployer{
		Access: Access{Targets: objects.NewFakeTargets(x.target)}, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return x.now },
	}
	x.a = &State{Owner: &records.Owner{
		Key: types.NamespacedName{Namespace: "ns", Name: "shop"}, Name: "application/ns/shop",
		Post:      func(do func()) { x.posted = append(x.posted, do) },
		WakeAfter: func(after time.Duration) { x.wakes = append(x.wakes, after) },
	}}
	p := &plan.Plan{Resources: resources}
	for i := range resources {
		p.Loose = append(p.Loose, i)
	}
	x.a.SetPlan(p)
	return x
}

// turn delivers what was posted, calls Dispatch, and returns the progress and the new writes.
func (x *world) turn() (Progress, []string) {
	for _, do := range x.posted {
		do()
	}
	x.posted = nil
	before := len(x.w.asked)
	p := x.d.Dispatch(x.a, false)
	return p, x.w.asked[before:]
}

// answer answers the last write with err or, if err is nil, with the object as created.
func (x *world) answer(err error) {
	last := len(x.w.answers) - 1
	o := x.w.created[last]
	if err != nil {
		o = nil
	} else {
		o = o.DeepCopyObject().(apiwriter.Object)
		o.SetResourceVersion(fmt.Sprint(100 + last))
		o.SetUID("uid")
	}
	x.w.answers[last](o, err)
}

// show lets the watch show an object.
func (x *world) show(version int, owner, data string, more ...func(*kubeclient.Raw)) {
	r := &kubeclient.Raw{}
	r.Name, r.Namespace, r.UID, r.ResourceVersion = "config", "ns", "uid", fmt.Sprint(version)
	r.Labels = map[string]string{oam.AppNamespaceLabel: "ns", oam.AppNameLabel: owner, oam.RenderHashLabel: "hash"}
	r.JSON = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config","namespace":"ns","labels":{%q:"ns",%q:%q,%q:"hash"}},"data":{%s}}`,
		oam.AppNamespaceLabel, oam.AppNameLabel, owner, oam.RenderHashLabel, data)
	for _, f := range more {
		f(r)
	}
	x.target.Objects.Put(configMap, r)
}

func config() plan.Resource {
	return plan.Resource{
		Ref: plan.Ref{GVK: configMap, Namespace: "ns", Name: "config"}, Hash: "hash",
		JSON: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config","namespace":"ns","labels":{%q:"ns",%q:"shop"}},"data":{"k":"v"}}`,
			oam.AppNamespaceLabel, oam.AppNameLabel),
	}
}

func (x *world) want(when string, applied int, writes ...string) Progress {
	x.Helper()
	p, got := x.turn()
	if !slices.Equal(writes, got) {
		x.Errorf("%s: writes %q, want %q", when, got, writes)
	}
	if p.Applied != applied {
		x.Errorf("%s: %d objects are applied, want %d: %v", when, p.Applied, applied, p.Problems)
	}
	return p
}

func TestAMissingObjectIsCreatedOnce(t *testing.T) {
	x := newWorld(t, config())
	x.want("at first", 0, "create config")
	x.want("without an answer", 0)
	x.answer(nil)
	x.want("with the answer, before the watch shows the object", 1)
	if !x.a.UIDs["uid"] {
		t.Error("the object is not known as created by the application")
	}
}

func TestDriftIsRepaired(t *testing.T) {
	x := newWorld(t, config())
	x.show(1, "shop", `"k":"v","more":"stays"`)
	x.want("as planned", 1)
	x.show(2, "shop", `"k":"mine"`)
	x.want("changed by another client", 0, `patch config {"data":{"k":"v"}}`)
	x.show(1, "shop", `"k":"v"`)
	x.want("an old version", 0)
}

func TestAnObjectOfAnotherApplicationIsLeftAlone(t *testing.T) {
	x := newWorld(t, config())
	x.show(1, "other", `"k":"theirs"`)
	p := x.want("owned by another", 0)
	if want := "existing object ConfigMap ns/config is managed by other application ns/other"; !slices.Contains(p.Problems, want) {
		t.Errorf("problems %q, want %q", p.Problems, want)
	}
}

func TestAnObjectThatIsBeingDeletedIsCreatedWhenItIsGone(t *testing.T) {
	x := newWorld(t, config())
	x.show(1, "shop", `"k":"v"`)
	x.target.Objects.MarkDeleted(x.a.Plan.Resources[0].Ref, "uid")
	x.want("being deleted", 0)
}

func TestARefusedWriteIsRepeatedWithBackoff(t *testing.T) {
	x := newWorld(t, config())
	x.want("at first", 0, "create config")
	for _, backoff := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		x.answer(errors.New("quota exceeded"))
		if p := x.want("refused", 0); !slices.Contains(p.Problems, "quota exceeded") {
			t.Errorf("problems %q", p.Problems)
		}
		if got := x.wakes[len(x.wakes)-1]; got != backoff {
			t.Errorf("the turn comes after %s, want %s", got, backoff)
		}
		x.now = x.now.Add(backoff - 1)
		x.want("just before the backoff is over", 0)
		x.now = x.now.Add(1)
		x.want("after the backoff", 0, "create config")
	}
	x.answer(nil)
	if p := x.want("done", 1); len(p.Problems) > 0 || x.a.Writes.Failure(records.RefKey(x.a.Plan.Resources[0].Ref)) != "" {
		t.Errorf("problems %q", p.Problems)
	}
}

func TestAFieldThatCannotBePatchedRecreatesTheObject(t *testing.T) {
	r := config()
	r.RecreateFields = []string{"data.k"}
	x := newWorld(t, r)
	x.show(1, "shop", `"k":"old"`)
	x.want("the field differs", 0, "delete config")
	x.answer(nil)
	x.want("being deleted", 0)
}

// TestWhatTheServerStoresOtherwiseIsNotWrittenAgain checks that an object whose content the server
// changes in each write is not patched forever.
func TestWhatTheServerStoresOtherwiseIsNotWrittenAgain(t *testing.T) {
	x := newWorld(t, config())
	x.show(1, "shop", `"k":"old"`)
	x.want("differs", 0, `patch config {"data":{"k":"v"}}`)
	stored := &kubeclient.Raw{}
	x.show(2, "shop", `"k":"V"`, func(r *kubeclient.Raw) { *stored = *r })
	x.w.answers[0](stored, nil)
	x.want("stored otherwise", 1)
	x.show(3, "shop", `"k":"V2"`)
	x.want("changed again by another client", 0, `patch config {"data":{"k":"v"}}`)
}

// TestAnObjectWithoutAnOwnerIsAdopted checks that an Application takes over an object without an
// owner if it may and if the plan still has the object.
func TestAnObjectWithoutAnOwnerIsAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		takeOver, ours, planned bool
		write                   bool
		failure                 string
	}{
		"it may be taken over":               {takeOver: true, planned: true, write: true},
		"its labels were removed":            {ours: true, planned: true, write: true},
		"it belongs to nobody":               {planned: true, failure: "ConfigMap ns/config exists but not managed by any application now"},
		"the plan does not have it any more": {takeOver: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := config()
			r.TakeOver = c.takeOver
			x := newWorld(t, r)
			x.want("at first", 0, "create config")
			raw := &kubeclient.Raw{JSON: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config","namespace":"ns"},"data":{"k":"old"}}`)}
			raw.Name, raw.Namespace, raw.UID, raw.ResourceVersion = "config", "ns", "found", "7"
			found, err := objects.NewObject(raw)
			if err != nil {
				t.Fatal(err)
			}
			if c.ours {
				x.a.UIDs = map[types.UID]bool{"found": true}
			}
			if !c.planned {
				x.a.SetPlan(&plan.Plan{})
			}
			before := len(x.w.asked)
			err = x.d.adopt(x.a, &r, found)
			if got := len(x.w.asked) > before; got != c.write || (err != nil) != (c.failure != "") || err != nil && err.Error() != c.failure {
				t.Errorf("writes %q, error %v", x.w.asked[before:], err)
			}
		})
	}
}
