package definitions

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/informer"
)

// workloadDefinition is the kind of WorkloadDefinitions.
const workloadDefinition render.Kind = "WorkloadDefinition"

// Limits of snapshots, in bytes of compressed data.
const (
	snapshotMax = 256 << 10 // of one; a larger one is left out, because objects have a limit, too
	cachedMax   = 4 << 20   // of all in the cache
)

// snapshots caches compressed sets of definitions, by the names and versions of the definitions. Most
// Applications use one of a few sets.
type snapshots struct {
	mu    sync.Mutex
	by    map[string]string
	bytes int
}

// named is a definition that a spec names.
type named struct {
	kind      render.Kind
	name      string
	namespace string
	version   string // the resource version of the object that has the definition
	content   func() ([]byte, error)
}

// Snapshot returns the definitions that the spec of an Application in a namespace names, as an
// ApplicationRevision has them. Definitions that do not exist are left out.
func (d *Library) Snapshot(namespace string, spec *oam.ApplicationSpec) oam.Compression {
	all := d.named(namespace, spec)
	var key strings.Builder
	for _, n := range all {
		for _, part := range []string{string(n.kind), n.namespace, n.name, n.version} {
			key.WriteString(part)
			key.WriteByte('/')
		}
	}
	if key.Len() == 0 {
		return oam.Compression{}
	}
	d.snapshots.mu.Lock()
	data, found := d.snapshots.by[key.String()]
	d.snapshots.mu.Unlock()
	if !found {
		data = compressed(all)
		d.snapshots.add(key.String(), data)
	}
	if data == "" {
		return oam.Compression{}
	}
	return oam.Compression{Type: oam.Gzip, Data: data}
}

func (x *snapshots) add(key, data string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil || x.bytes > cachedMax {
		x.by, x.bytes = map[string]string{}, 0
	}
	x.by[key] = data
	x.bytes += len(key) + len(data)
}

// compressed returns definitions as compressed JSON in base64, or an empty string if that is too
// large.
func compressed(all []named) string {
	kinds := map[string]map[string]json.RawMessage{}
	for _, n := range all {
		content, err := n.content()
		if err != nil {
			continue
		}
		field := strings.ToLower(string(n.kind[:1])) + string(n.kind[1:]) + "s"
		if kinds[field] == nil {
			kinds[field] = map[string]json.RawMessage{}
		}
		kinds[field][n.name] = content
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := json.NewEncoder(z).Encode(kinds)
	if closed := z.Close(); err != nil || closed != nil || base64.StdEncoding.EncodedLen(b.Len()) > snapshotMax {
		return ""
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// named returns the definitions that a spec names and that exist, in order.
func (d *Library) named(namespace string, spec *oam.ApplicationSpec) (all []named) {
	types := map[render.Kind]map[string]bool{render.Component: {}, render.Trait: {}, render.Policy: {}, render.WorkflowStep: {}}
	for i := range spec.Components {
		types[render.Component][spec.Components[i].Type] = true
		for _, t := range spec.Components[i].Traits {
			types[render.Trait][t.Type] = true
		}
	}
	for i := range spec.Policies {
		types[render.Policy][spec.Policies[i].Type] = true
	}
	if spec.Workflow != nil {
		for i := range spec.Workflow.Steps {
			types[render.WorkflowStep][spec.Workflow.Steps[i].Type] = true
			for _, sub := range spec.Workflow.Steps[i].SubSteps {
				types[render.WorkflowStep][sub.Type] = true
			}
		}
	}
	all = appendNamed(all, d, d.components, render.Component, render.OfComponent, namespace, types)
	all = d.appendWorkloads(all, namespace, types[render.Component])
	all = appendNamed(all, d, d.traits, render.Trait, render.OfTrait, namespace, types)
	all = appendNamed(all, d, d.policies, render.Policy, render.OfPolicy, namespace, types)
	return appendNamed(all, d, d.steps, render.WorkflowStep, render.OfWorkflowStep, namespace, types)
}

func appendNamed[T apiwriter.Object](to []named, d *Library, kind *informer.Informer[T], called render.Kind, definition func(T) *render.Definition, namespace string, types map[render.Kind]map[string]bool) []named {
	for _, name := range slices.Sorted(maps.Keys(types[called])) {
		base, pinned, isPinned := strings.Cut(name, "@")
		for _, ns := range []string{namespace, oam.SystemNamespace} {
			if r := d.pinned(called, ns, base, pinned); isPinned && r != nil {
				if content := definitionOf(r, called); content != nil {
					to = append(to, named{called, base, ns, r.Name + "@" + r.ResourceVersion, content.MarshalJSON})
				}
				break
			}
			if o, found := kind.Get(ns, base); found && (!isPinned || first(pinned)) {
				to = append(to, named{called, base, ns, o.GetResourceVersion(), func() ([]byte, error) {
					return contentOf(&revisedDefinition{def: definition(o), object: o})
				}})
				break
			}
		}
	}
	return to
}

// appendWorkloads adds the WorkloadDefinitions that take the place of ComponentDefinitions.
func (d *Library) appendWorkloads(to []named, namespace string, types map[string]bool) []named {
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if o := d.workload(namespace, name); o != nil && !slices.ContainsFunc(to, func(n named) bool { return n.kind == render.Component && n.name == name }) {
			to = append(to, named{workloadDefinition, name, o.Namespace, o.ResourceVersion, func() ([]byte, error) {
				return contentOf(&revisedDefinition{def: &render.Definition{Kind: workloadDefinition, Namespace: o.Namespace, Name: o.Name}, object: o})
			}})
		}
	}
	return to
}

// definitionOf returns the definition that a revision has, or nil.
func definitionOf(r *oam.DefinitionRevision, called render.Kind) *runtime.RawExtension {
	switch called {
	case render.Component:
		return r.Spec.ComponentDefinition
	case render.Trait:
		return r.Spec.TraitDefinition
	case render.Policy:
		return r.Spec.PolicyDefinition
	case render.WorkflowStep:
		return r.Spec.WorkflowStepDefinition
	}
	return nil
}

// contentOf returns a definition as revisions have it: without the metadata of the server.
func contentOf(r *revisedDefinition) ([]byte, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(r.object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"apiVersion": oam.GroupVersion.String(), "kind": string(r.def.Kind), "spec": content["spec"],
		"metadata": map[string]any{"name": r.def.Name, "namespace": r.def.Namespace},
	})
}
