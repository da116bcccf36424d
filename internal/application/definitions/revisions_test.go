package definitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/render"
)

// writer keeps the writes that it is given. The test answers the creates.
type writer struct {
	apiwriter.Writer
	created []*oam.DefinitionRevision
	deleted []string
	patched []string
	answer  func(error)
}

func (w *writer) Create(_ apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	w.created = append(w.created, o.(*oam.DefinitionRevision))
	w.answer = func(err error) { done(o, err) }
}

func (w *writer) Patch(_ apiwriter.Meta, o apiwriter.Object, _ types.PatchType, data []byte, done func(apiwriter.Object, error)) {
	w.patched = append(w.patched, o.GetName()+" "+string(data))
	done(o, nil)
}

func (w *writer) Delete(_ apiwriter.Meta, o apiwriter.Object, _ apiwriter.DeleteOptions, done func(error)) {
	w.deleted = append(w.deleted, o.GetName())
	done(nil)
}

// world is a library without a server, and its writer of revisions.
type world struct {
	*testing.T
	w     *writer
	d     *Library
	specs []*oam.ApplicationSpec
}

func newWorld(t *testing.T) *world {
	x := &world{T: t, w: &writer{}}
	x.d = New(Config{
		Writer: x.w, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}, Changed: func() {},
		Specs: func(yield func(*oam.ApplicationSpec, error) bool) {
			for _, spec := range x.specs {
				if !yield(spec, nil) {
					return
				}
			}
		},
	})
	x.d.revisions.begin()
	return x
}

// define lets the watch show a TraitDefinition, and returns the names of the revisions that are
// created.
func (x *world) define(version, template string) []string {
	x.Helper()
	o := &oam.TraitDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "scaler", ResourceVersion: template}}
	o.Spec.Version = version
	o.Spec.Schematic = &oam.Schematic{CUE: &oam.CUE{Template: template}}
	if err := x.d.traits.Store().Update(o); err != nil {
		x.Fatal(err)
	}
	before := len(x.w.created)
	x.d.revisions.changed(nil, &revisedDefinition{render.OfTrait(o), o, specVersion(o)})
	var names []string
	for _, r := range x.w.created[before:] {
		names = append(names, r.Name)
	}
	return names
}

// read decodes YAML.
func read[T any](x *world, text string) *T {
	x.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		x.Fatal(err)
	}
	return out
}

// TestRevisionsInUseAreKept checks that a definition's revisions beyond the limit are deleted,
// apart from those that something refers to.
func TestRevisionsInUseAreKept(t *testing.T) {
	x := newWorld(t)
	for i := range definitionRevisionsMax + 10 {
		x.define("", fmt.Sprintf("a: %d", i))
	}
	x.show()
	for _, text := range []string{
		"components: [{name: web, type: worker, traits: [{type: scaler@v1}]}]",
		"components: [{name: web, type: scaler@v2}, {name: old, type: big-scaler@v9}]",
		"components: []\npolicies: [{name: more, type: override, properties: {components: [{traits: [{type: scaler@v3}]}]}}]",
		"components: []\nworkflow: {steps: [{name: all, type: step-group, subSteps: [{name: one, type: scaler@v4}]}]}",
		"components: []\nworkflow: {steps: [{name: one, type: apply-component, properties: {value: {type: scaler@5}}}]}",
	} {
		x.specs = append(x.specs, read[oam.ApplicationSpec](x, text))
	}
	workflow := read[v1alpha1.Workflow](x, "metadata: {namespace: ns, name: shared}\nsteps: [{name: one, type: scaler@v6}]")
	policy := read[v1alpha1.Policy](x, "metadata: {namespace: ns, name: shared}\ntype: override\nproperties: {components: [{traits: [{type: scaler@v7}]}]}")
	if err := errors.Join(x.d.SharedWorkflows.Store().Add(workflow), x.d.SharedPolicies.Store().Add(policy)); err != nil {
		t.Fatal(err)
	}
	x.w.deleted = nil
	x.define("", "a: last")
	if want := []string{"scaler-v8", "scaler-v9", "scaler-v10", "scaler-v11"}; !slices.Equal(x.w.deleted, want) {
		t.Errorf("deleted are %q, want %q", x.w.deleted, want)
	}
}

// show lets the watch show the revisions created so far.
func (x *world) show() {
	x.Helper()
	for _, r := range x.w.created {
		if err := x.d.stored.Store().Update(r); err != nil {
			x.Fatal(err)
		}
	}
}

// remove lets the watch show that the definition and its revisions are deleted.
func (x *world) remove() {
	x.Helper()
	for _, o := range x.d.traits.List() {
		_ = x.d.traits.Store().Delete(o)
	}
	for _, r := range x.d.stored.List() {
		_ = x.d.stored.Store().Delete(r)
		x.d.revisions.deleted(r)
	}
}

func TestADefinitionThatIsMadeAgainHasARevision(t *testing.T) {
	for name, c := range map[string]struct{ version, want string }{
		"numbered": {"", "scaler-v1"}, "with a version": {"1.4.0", "scaler-v1.4.0"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			for range 2 {
				if got := x.define(c.version, "a: 1"); !slices.Equal(got, []string{c.want}) {
					t.Fatalf("created are %q, want %s", got, c.want)
				}
				x.w.answer(nil)
				if got := x.define(c.version, "a: 1"); got != nil {
					t.Fatalf("created before the watch shows the first: %q", got)
				}
				x.show()
				x.remove()
			}
		})
	}
}

func TestARevisionThatIsRefusedIsCreatedLater(t *testing.T) {
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "definitionrevisions"}, "scaler-v1")
	for name, c := range map[string]struct {
		version string
		err     error
		want    int // creates
	}{
		"refused":                       {"", errors.New("a webhook does not answer"), 2},
		"a number that the watch lacks": {"", exists, 2},
		"a version that is kept":        {"1.4.0", exists, 1},
		"created":                       {"", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newWorld(t)
				ctx, cancel := context.WithCancel(t.Context())
				go x.d.revisions.run(ctx)
				x.define(c.version, "a: 1")
				x.w.answer(c.err)
				time.Sleep(time.Minute) // of the simulated clock
				synctest.Wait()
				if len(x.w.created) != c.want {
					t.Errorf("there were %d creates, want %d", len(x.w.created), c.want)
				}
				cancel()
			})
		})
	}
}

// TestTheNewestRevisionIsInTheStatus checks that the status of a definition gets its revision once the
// revision is stored, and once only.
func TestTheNewestRevisionIsInTheStatus(t *testing.T) {
	x := newWorld(t)
	x.define("", "a: 1")
	if len(x.w.patched) != 0 {
		t.Errorf("before the answer: %q", x.w.patched)
	}
	x.w.answer(nil)
	x.show()
	hash := x.w.created[0].Spec.RevisionHash
	want := `scaler {"status":{"latestRevision":{"name":"scaler-v1","revision":1,"revisionHash":"` + hash + `"}}}`
	if !slices.Equal(x.w.patched, []string{want}) {
		t.Errorf("patched are %q, want %q", x.w.patched, want)
	}
	// A manager that has ended between the two writes.
	x.define("", "a: 1")
	if !slices.Equal(x.w.patched, []string{want, want}) {
		t.Errorf("patched are %q, want it again", x.w.patched)
	}
	o, _ := x.d.traits.Get("ns", "scaler")
	o.Status.LatestRevision = &oam.Revision{Name: "scaler-v1", Revision: 1, RevisionHash: hash}
	x.d.revisions.changed(nil, &revisedDefinition{render.OfTrait(o), o, ""})
	if len(x.w.patched) != 2 {
		t.Errorf("what has it is patched: %q", x.w.patched[2:])
	}
}
