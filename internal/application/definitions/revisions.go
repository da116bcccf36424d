package definitions

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/install"
)

// Every state that a definition written by users has had is kept as a DefinitionRevision.
// Applications refer to a revision as type@v2, or as type@1.4.0 if the definition states a version in
// its spec or in an annotation, or as type@1.4 for the newest version that begins so. Built-in
// definitions have no revisions until they change: their first state is stored together with their second.

// definitionRevisionsMax is the number of revisions that are kept of a definition, in addition to
// those that Applications refer to.
const definitionRevisionsMax = 20

// revisedDefinition is one state of a definition.
type revisedDefinition struct {
	def     *render.Definition
	object  apiwriter.Object
	version string // the version that the definition states, or empty
}

// assigned is the newest revision of a definition. The watch may not have shown it yet.
type assigned struct {
	number int64
	hash   string
	name   string
}

// statedVersion returns the version that a definition states in its spec or else in an annotation, or
// an empty string if a revision cannot have that name.
func statedVersion(o apiwriter.Object) string {
	version := specVersion(o)
	if version == "" {
		version = o.GetAnnotations()[oam.DefinitionRevisionAnnotation]
	}
	if version != "" && len(validation.IsDNS1123Subdomain(revisionName(o.GetName(), 0, version))) > 0 {
		return ""
	}
	return version
}

// specVersion returns the version in a definition's spec.
func specVersion(o apiwriter.Object) string {
	switch o := o.(type) {
	case *oam.ComponentDefinition:
		return o.Spec.Version
	case *oam.TraitDefinition:
		return o.Spec.Version
	case *oam.PolicyDefinition:
		return o.Spec.Version
	case *oam.WorkflowStepDefinition:
		return o.Spec.Version
	}
	return ""
}

// definitionType returns the name of a kind in DefinitionRevisions.
func definitionType(k render.Kind) oam.DefinitionType {
	return oam.DefinitionType(strings.TrimSuffix(string(k), "Definition"))
}

// revisionName returns the name of a definition's revision.
func revisionName(name string, number int64, version string) string {
	if version != "" {
		return name + "-v" + strings.TrimPrefix(version, "v")
	}
	return fmt.Sprintf("%s-v%d", name, number)
}

// revisionWriter stores the states of definitions as revisions.
type revisionWriter struct {
	definitions *Library
	cfg         Config
	// writing is set once the watches of definitions and of revisions have synced.
	writing atomic.Bool

	mu       sync.Mutex
	assigned map[definitionKey]assigned
	failed   chan struct{} // has an element if a revision could not be created
}

func newRevisionWriter(d *Library, cfg Config) *revisionWriter {
	return &revisionWriter{
		definitions: d, cfg: cfg, assigned: map[definitionKey]assigned{}, failed: make(chan struct{}, 1),
	}
}

// run retries to create revisions that could not be created, after a backoff, until ctx is done.
func (w *revisionWriter) run(ctx context.Context) {
	var backoff controlloop.Backoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.failed:
		}
		backoff.Failed(w.cfg.Clock.Now())
		select {
		case <-ctx.Done():
			return
		case <-w.cfg.Clock.After(backoff.Left(w.cfg.Clock.Now())):
		}
		w.begin()
	}
}

// deleted forgets which revision a definition got last if one of its revisions is deleted: if all
// are, the definition's present state needs a new one.
func (w *revisionWriter) deleted(r *oam.DefinitionRevision) {
	kind := render.Kind(r.Spec.DefinitionType) + "Definition"
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.assigned, definitionKey{kind, r.Namespace, r.Labels[definitionLabel(kind)]})
}

// begin stores the states of all definitions that have no revision yet. Call it once the watches of
// definitions and of revisions have synced.
func (w *revisionWriter) begin() {
	w.writing.Store(true)
	w.definitions.each(func(r *revisedDefinition) { w.changed(nil, r) })
}

// changed stores a definition's new state as a revision. It does nothing until the watches of
// definitions and revisions have synced. old is the previous state, or nil.
func (w *revisionWriter) changed(old, new *revisedDefinition) {
	if !w.writing.Load() {
		return // begin handles all definitions
	}
	owner := new.def.Namespace + "/" + new.def.Name
	if w.cfg.Owns != nil && !w.cfg.Owns(owner) {
		return
	}
	known := w.definitions.revisionsOf(new.def)
	_, builtin := new.object.GetAnnotations()[install.AppliedAnnotation]
	if len(known) == 0 && builtin && new.def.Namespace == oam.SystemNamespace {
		if old == nil || old.def.Hash == new.def.Hash {
			return
		}
		w.revise(old, known)
	}
	w.revise(new, known)
	w.nameWorkload(new.object)
}

// revise creates a revision with a state of a definition, unless the newest revision has that
// state, and deletes old revisions.
func (w *revisionWriter) revise(r *revisedDefinition, known []*oam.DefinitionRevision) {
	key := definitionKey{r.def.Kind, r.def.Namespace, r.def.Name}
	w.mu.Lock()
	last := w.assigned[key]
	if n := len(known); n > 0 && known[n-1].Spec.Revision >= last.number {
		last = assigned{known[n-1].Spec.Revision, known[n-1].Spec.RevisionHash, known[n-1].Name}
	}
	if last.hash == r.def.Hash && (r.version == "" || last.name == revisionName(r.def.Name, 0, r.version)) {
		w.mu.Unlock()
		if n := len(known); n > 0 && known[n-1].Name == last.name { // it is stored
			w.report(r, last)
		}
		return
	}
	last = assigned{last.number + 1, r.def.Hash, revisionName(r.def.Name, last.number+1, r.version)}
	w.assigned[key] = last
	w.mu.Unlock()
	o, err := newDefinitionRevision(r, last.number)
	if err != nil {
		w.cfg.Log.Error("a state of a definition cannot be written down", "definition", r.def.String(), "error", err)
		return
	}
	meta := apiwriter.Meta{Owner: "definition/" + r.def.Namespace + "/" + r.def.Name, Reason: "definition-revision"}
	w.cfg.Writer.Create(meta, o, func(_ apiwriter.Object, err error) {
		switch {
		case apierrors.IsAlreadyExists(err) && r.version != "":
			w.cfg.Log.Warn("a definition has changed and kept its version: applications that name the version get what it was first", "definition", r.def.String(), "revision", o.Name)
		case err != nil:
			w.cfg.Log.Warn("a state of a definition is not written down", "definition", r.def.String(), "error", err)
			w.retry(key, last)
		default:
			w.report(r, last)
		}
	})
	for _, old := range w.dispensable(r.def, known) {
		w.cfg.Writer.Delete(meta, old, apiwriter.DeleteOptions{}, func(err error) {
			if err != nil {
				w.cfg.Log.Warn("an old state of a definition stays", "revision", old.Name, "error", err)
			}
		})
	}
}

// report writes a definition's newest revision to its status, where clients look for it.
func (w *revisionWriter) report(r *revisedDefinition, newest assigned) {
	revision := oam.Revision{Name: newest.name, Revision: newest.number, RevisionHash: newest.hash}
	if had := latestRevision(r.object); had != nil && *had == revision {
		return
	}
	data, err := json.Marshal(map[string]any{"status": map[string]any{"latestRevision": revision}})
	if err != nil {
		return // cannot happen: plain data
	}
	meta := apiwriter.Meta{Owner: "definition/" + r.def.Namespace + "/" + r.def.Name, Reason: "definition-status", StatusOnly: true}
	w.cfg.Writer.Patch(meta, r.object, types.MergePatchType, data, func(_ apiwriter.Object, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			w.cfg.Log.Warn("a definition's status lacks its newest revision", "definition", r.def.String(), "error", err)
		}
	})
}

// latestRevision returns the revision in a definition's status, or nil.
func latestRevision(o apiwriter.Object) *oam.Revision {
	switch o := o.(type) {
	case *oam.ComponentDefinition:
		return o.Status.LatestRevision
	case *oam.TraitDefinition:
		return o.Status.LatestRevision
	case *oam.PolicyDefinition:
		return o.Status.LatestRevision
	case *oam.WorkflowStepDefinition:
		return o.Status.LatestRevision
	}
	return nil
}

// autodetected is the workload type of a definition that names no type: the kind of the component's
// object is the kind of its output.
const autodetected = "autodetects.core.oam.dev"

// nameWorkload creates the WorkloadDefinition that a component's definition names as the type of its
// workload, if there is none. Clients look the kind up there.
func (w *revisionWriter) nameWorkload(o apiwriter.Object) {
	c, ok := o.(*oam.ComponentDefinition)
	if !ok || c.Spec.Workload.Definition == nil || c.Spec.Workload.Definition.Kind == "" {
		return
	}
	name := c.Spec.Workload.Type
	if name == "" || name == autodetected || strings.HasSuffix(name, ".lockstep.dev") || w.definitions.workload(c.Namespace, name) != nil {
		return
	}
	gv, err := schema.ParseGroupVersion(c.Spec.Workload.Definition.APIVersion)
	if err != nil {
		return
	}
	owner := "definition/" + c.Namespace + "/" + c.Name
	created := &oam.WorkloadDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Annotations: map[string]string{apiwriter.CreatorAnnotation: "definitions"}},
		Spec:       oam.WorkloadDefinitionSpec{Reference: oam.DefinitionReference{Name: name, Version: gv.Version}},
	}
	w.cfg.Writer.Create(apiwriter.Meta{Owner: owner, Reason: "workload-definition"}, created, func(_ apiwriter.Object, err error) {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			w.cfg.Log.Warn("a kind of workload has no definition", "definition", owner, "workload", name, "error", err)
		}
	})
}

// retry lets run create a revision that could not be created.
func (w *revisionWriter) retry(key definitionKey, of assigned) {
	w.mu.Lock()
	if w.assigned[key] == of {
		delete(w.assigned, key)
	}
	w.mu.Unlock()
	select {
	case w.failed <- struct{}{}:
	default: // run retries all
	}
}

func newDefinitionRevision(r *revisedDefinition, number int64) (*oam.DefinitionRevision, error) {
	data, err := contentOf(r)
	if err != nil {
		return nil, err
	}
	o := &oam.DefinitionRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.def.Namespace, Name: revisionName(r.def.Name, number, r.version),
			Labels: map[string]string{definitionLabel(r.def.Kind): r.def.Name},
		},
		Spec: oam.DefinitionRevisionSpec{Revision: number, RevisionHash: r.def.Hash, DefinitionType: definitionType(r.def.Kind)},
	}
	raw := &runtime.RawExtension{Raw: data}
	switch r.def.Kind {
	case render.Component:
		o.Spec.ComponentDefinition = raw
	case render.Trait:
		o.Spec.TraitDefinition = raw
	case render.Policy:
		o.Spec.PolicyDefinition = raw
	case render.WorkflowStep:
		o.Spec.WorkflowStepDefinition = raw
	}
	return o, nil
}

// definitionLabel returns the label that names a revision's definition.
func definitionLabel(k render.Kind) string {
	return strings.ToLower(string(k)) + ".oam.dev/name"
}

// reference matches a string NAME@REVISION anywhere in the JSON of a spec: properties of policies
// and steps have types, too.
var reference = regexp.MustCompile(`"([^"@]+)@([^"]+)"`)

// dispensable returns the revisions that are beyond the limit and that nothing refers to: no
// Application, in the spec that it has or the one that it is deployed with, and no shared Workflow
// or Policy.
func (w *revisionWriter) dispensable(def *render.Definition, known []*oam.DefinitionRevision) []*oam.DefinitionRevision {
	if len(known) < definitionRevisionsMax {
		return nil
	}
	named := map[string]bool{}
	note := func(spec any) error {
		data, err := json.Marshal(spec)
		for _, found := range reference.FindAllSubmatch(data, -1) {
			if string(found[1]) != def.Name {
				continue
			}
			if r := newest(known, def.Name, string(found[2])); r != nil {
				named[r.Name] = true
			}
		}
		return err
	}
	for spec, err := range w.cfg.Specs {
		if err != nil || note(spec) != nil {
			return nil // the Application may refer to any revision
		}
	}
	for _, shared := range w.definitions.SharedWorkflows.List() {
		if note(shared) != nil {
			return nil
		}
	}
	for _, shared := range w.definitions.SharedPolicies.List() {
		if note(shared) != nil {
			return nil
		}
	}
	return slices.DeleteFunc(slices.Clone(known[:len(known)-definitionRevisionsMax+1]), func(r *oam.DefinitionRevision) bool { return named[r.Name] })
}

// pinnedName returns the name of the revision that type@pinned names.
func pinnedName(name, pinned string) string { return name + "-v" + strings.TrimPrefix(pinned, "v") }

// newest returns the revision that type@pinned refers to: the revision of that name, or otherwise
// the newest one whose version begins with pinned, as 1.4.2 begins with 1.4. It returns nil if
// there is none.
func newest(known []*oam.DefinitionRevision, name, pinned string) *oam.DefinitionRevision {
	var found *oam.DefinitionRevision
	var best *version.Version
	called := pinnedName(name, pinned)
	for _, r := range known {
		if r.Name == called {
			return r
		}
		v, err := version.ParseSemantic(strings.TrimPrefix(r.Name, name+"-v"))
		if err != nil || !strings.HasPrefix(r.Name, called+".") || best != nil && v.LessThan(best) {
			continue
		}
		found, best = r, v
	}
	return found
}

// revisionsOf returns the stored revisions of a definition, oldest first.
func (d *Library) revisionsOf(def *render.Definition) []*oam.DefinitionRevision {
	return d.revisionsNamed(def.Kind, def.Namespace, def.Name)
}

func (d *Library) revisionsNamed(kind render.Kind, namespace, name string) []*oam.DefinitionRevision {
	var out []*oam.DefinitionRevision
	for _, r := range d.stored.List() {
		if r.Namespace == namespace && r.Spec.DefinitionType == definitionType(kind) && r.Labels[definitionLabel(kind)] == name {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *oam.DefinitionRevision) int { return int(a.Spec.Revision - b.Spec.Revision) })
	return out
}

// pinnedTo returns the template of the revision that an Application refers to.
func pinnedTo[T apiwriter.Object](d Templates, called render.Kind, empty T, definition func(T) *render.Definition, namespace, base, pinned string) (*render.Template, error) {
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		r := d.pinned(called, ns, base, pinned)
		if r == nil {
			continue
		}
		return d.compile(definitionKey{called, ns, base + "@" + strings.TrimPrefix(r.Name, base+"-v")}, r.ResourceVersion, func() (*render.Definition, error) {
			raw := definitionOf(r, called)
			if raw == nil {
				return nil, fmt.Errorf("DefinitionRevision %s/%s has no %s", ns, r.Name, called)
			}
			if err := json.Unmarshal(raw.Raw, empty); err != nil {
				return nil, fmt.Errorf("DefinitionRevision %s/%s: %w", ns, r.Name, err)
			}
			return definition(empty), nil
		})
	}
	return nil, fmt.Errorf("%s %s has no revision %s, in namespaces %s and %s: %w", called, base, pinned, namespace, oam.SystemNamespace, ErrNotFound)
}

// pinned returns the revision of a definition of a namespace that base@pinned refers to, or nil.
func (d *Library) pinned(called render.Kind, namespace, base, pinned string) *oam.DefinitionRevision {
	if r, ok := d.stored.Get(namespace, pinnedName(base, pinned)); ok && r.Spec.DefinitionType == definitionType(called) {
		return r
	}
	return newest(d.revisionsNamed(called, namespace, base), base, pinned)
}

// first reports whether pinned refers to a definition's first revision.
func first(pinned string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(pinned, "v"))
	return err == nil && n == 1
}
