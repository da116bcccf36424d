package addon

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// ClustersParameter is the parameter that names the clusters of an addon. The cluster of the
// manager is always one of them.
const ClustersParameter = "clusters"

// AuxiliaryLabel has, on an object beside the Application, its name in outputs of template.cue.
const AuxiliaryLabel = "addons.oam.dev/auxiliary-name"

// bound are the annotations of objects that are left out if the Application lacks the component
// that they name.
var bound = []string{"addon.oam.dev/ignore-without-component", "addon.oam.dev/bind-component"}

// DefinitionAnnotations are the annotations of the Application that list the names of the addon's
// definitions, by kind.
var DefinitionAnnotations = map[render.Kind]string{
	render.Component:    "addon.oam.dev/componentDefinitions",
	render.Trait:        "addon.oam.dev/traitDefinitions",
	render.WorkflowStep: "addon.oam.dev/workflowStepDefinitions",
	render.Policy:       "addon.oam.dev/policyDefinitions",
}

// AppName returns the name of the Application of an addon.
func AppName(addon string) string { return "addon-" + addon }

// Input is what an addon is rendered with.
type Input struct {
	// Parameters may be nil.
	Parameters map[string]any
	// Registry is the name of the registry that the addon is from.
	Registry string
}

// Rendered is what an addon becomes.
type Rendered struct {
	Application *unstructured.Unstructured
	// Beside are objects in the namespace of the Application that belong to it.
	Beside []*unstructured.Unstructured
	// Notes is a text for whoever enables the addon.
	Notes string
	// Warnings say what has no effect.
	Warnings []string
}

// Render renders an addon.
func (a *Addon) Render(run render.Run, in Input) (*Rendered, error) {
	r := &renderer{Addon: a, run: run, in: in, out: &Rendered{}, known: map[string]bool{}}
	for _, part := range []func() error{r.application, r.namespaces, r.resources, r.definitions, r.configTemplates, r.views, r.schemas, r.readNotes} {
		if err := part(); err != nil {
			return nil, fmt.Errorf("addon %s: %w", a.Name, err)
		}
	}
	r.place()
	r.finish()
	return r.out, nil
}

type renderer struct {
	*Addon
	run render.Run
	in  Input
	out *Rendered

	spec       map[string]any // of the Application
	components []any
	known      map[string]bool // parameters that a file declares, or that have a meaning
}

func (r *renderer) warn(format string, args ...any) {
	r.out.Warnings = append(r.out.Warnings, fmt.Sprintf(format, args...))
}

// evaluate evaluates files with the parameters, and returns a field of them, or nil.
func (r *renderer) evaluate(files []render.Source, fields ...string) (map[string]any, error) {
	given := r.in.Parameters
	if given == nil {
		given = map[string]any{}
	}
	parameters, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	context, err := json.Marshal(map[string]any{"metadata": r.Metadata})
	if err != nil {
		return nil, err
	}
	answer, err := render.Files(r.run, &render.FilesRequest{
		Sources: slices.Concat(files, r.Addon.parameters), Fields: fields,
		Values: map[string]json.RawMessage{"parameter": parameters, "context": context},
	})
	if err != nil {
		return nil, err
	}
	for name := range r.in.Parameters {
		r.known[name] = r.known[name] || !slices.Contains(answer.Strays, "parameter."+name)
	}
	out := map[string]any{}
	for field, data := range answer.Fields {
		if out[field], err = decode(data); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// application makes the Application from the template.
func (r *renderer) application() error {
	app := map[string]any{}
	switch {
	case r.template != nil:
		values, err := r.evaluate(append([]render.Source{*r.template}, r.shared...), "output", "outputs")
		if err != nil {
			return err
		}
		var ok bool
		if app, ok = values["output"].(map[string]any); !ok {
			return fmt.Errorf("%s: it has no output", templateCUEFile)
		}
		if err := r.auxiliary(values["outputs"]); err != nil {
			return err
		}
	case r.files[templateYAMLFile] != nil:
		docs, err := documents(templateYAMLFile, r.files[templateYAMLFile])
		if err != nil {
			return err
		}
		if len(docs) != 1 {
			return fmt.Errorf("%s: it has %d objects; an addon is one Application", templateYAMLFile, len(docs))
		}
		app = docs[0]
	}
	u := &unstructured.Unstructured{Object: app}
	if kind := u.GetKind(); kind != "" && kind != "Application" {
		return fmt.Errorf("the template is a %s, and not an Application", kind)
	}
	if name := u.GetName(); name != "" && name != AppName(r.Name) {
		r.warn("the template's name %s has no effect: the application is %s", name, AppName(r.Name))
	}
	if ns := u.GetNamespace(); ns != "" && ns != oam.SystemNamespace {
		r.warn("the template's namespace %s has no effect: the application is in %s", ns, oam.SystemNamespace)
	}
	u.SetAPIVersion(oam.GroupVersion.String())
	u.SetKind("Application")
	u.SetName(AppName(r.Name))
	u.SetNamespace(oam.SystemNamespace)
	r.out.Application = u
	r.spec, _ = app["spec"].(map[string]any)
	if r.spec == nil {
		r.spec = map[string]any{}
		app["spec"] = r.spec
	}
	r.components, _ = r.spec["components"].([]any)
	return nil
}

// auxiliary adds the objects in outputs of template.cue.
func (r *renderer) auxiliary(outputs any) error {
	list, _ := outputs.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		object, ok := list[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: outputs.%s is no object", templateCUEFile, name)
		}
		u := &unstructured.Unstructured{Object: object}
		if err := r.beside("outputs."+name, u); err != nil {
			return fmt.Errorf("%s: %w", templateCUEFile, err)
		}
		label(u, AuxiliaryLabel, name)
	}
	return nil
}

// beside adds an object beside the Application. It belongs to the Application, and so is in its
// namespace: a garbage collector would delete it in another one.
func (r *renderer) beside(what string, u *unstructured.Unstructured) error {
	if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
		return fmt.Errorf("%s: an object has an apiVersion, a kind and a name", what)
	}
	if ns := u.GetNamespace(); ns != "" && ns != oam.SystemNamespace {
		return fmt.Errorf("%s: %s %s is in namespace %s; objects elsewhere than in %s are made by components", what, u.GetKind(), u.GetName(), ns, oam.SystemNamespace)
	}
	u.SetNamespace(oam.SystemNamespace)
	r.out.Beside = append(r.out.Beside, u)
	return nil
}

// namespaces adds a component for each namespace that the addon needs.
func (r *renderer) namespaces() error {
	for _, ns := range r.NeedNamespace {
		if ns == oam.SystemNamespace {
			continue
		}
		r.add(ns+"-namespace", "raw", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}})
	}
	return nil
}

func (r *renderer) add(name, kind string, properties map[string]any) {
	r.components = append(r.components, map[string]any{"name": name, "type": kind, "properties": properties})
}

// resources adds the components of the folder resources/.
func (r *renderer) resources() error {
	var objects []any
	for _, name := range r.files.in(resourcesFolder, ".yaml", ".yml") {
		docs, err := documents(name, r.files[name])
		if err != nil {
			return err
		}
		for _, doc := range docs {
			objects = append(objects, doc)
		}
	}
	if len(objects) > 0 {
		r.add(r.Name+"-resources", "k8s-objects", map[string]any{"objects": objects})
	}
	for _, s := range r.Addon.components {
		values, err := r.evaluate([]render.Source{s}, "output")
		if err != nil {
			return err
		}
		if values["output"] == nil {
			continue // it has only what others use
		}
		comp, ok := values["output"].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: output is no component", s.Name)
		}
		if name, _ := comp["name"].(string); name == "" {
			base := path.Base(s.Name)
			comp["name"] = strings.ReplaceAll(strings.TrimSuffix(base, path.Ext(base)), ".", "-")
		}
		r.components = append(r.components, comp)
	}
	return nil
}

// definitions adds the definitions.
func (r *renderer) definitions() error {
	for _, name := range r.files.in("definitions", ".yaml", ".yml") {
		docs, err := documents(name, r.files[name])
		if err != nil {
			return err
		}
		for _, doc := range docs {
			u := &unstructured.Unstructured{Object: doc}
			u.SetNamespace(oam.SystemNamespace) // definitions are for everyone, whatever their manifests say
			if err := r.beside(name, u); err != nil {
				return err
			}
		}
	}
	for _, name := range r.files.in("definitions", ".cue") {
		object, err := render.DefinitionIn(r.run, render.Source{Name: name, Text: string(r.files[name])})
		if err != nil {
			return err
		}
		if err := r.beside(name, &unstructured.Unstructured{Object: object}); err != nil {
			return err
		}
	}
	return nil
}

// configTemplates adds the templates of configs.
func (r *renderer) configTemplates() error {
	for _, name := range r.files.in("config-templates", ".cue") {
		text := string(r.files[name])
		answer, err := render.Files(r.run, &render.FilesRequest{
			Sources: []render.Source{{Name: name, Text: text}, {Name: "context", Text: "context: {...}"}}, Fields: []string{"metadata"},
		})
		if err != nil {
			return err
		}
		var meta struct {
			Name        string `json:"name"`
			Alias       string `json:"alias"`
			Description string `json:"description"`
			Scope       string `json:"scope"`
			Sensitive   bool   `json:"sensitive"`
		}
		if data := answer.Fields["metadata"]; len(data) > 0 {
			if err := json.Unmarshal(data, &meta); err != nil {
				return fmt.Errorf("%s: metadata: %w", name, err)
			}
		}
		if meta.Name == "" {
			return fmt.Errorf("%s: metadata.name must be given", name)
		}
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"template": text}}}
		u.SetName(oam.ConfigTemplatePrefix + meta.Name)
		u.SetLabels(map[string]string{oam.ConfigCatalogLabel: oam.ConfigCatalog, oam.ConfigScopeLabel: meta.Scope})
		u.SetAnnotations(map[string]string{
			oam.ConfigAliasAnnotation: meta.Alias, oam.ConfigDescriptionAnnotation: meta.Description,
			oam.ConfigSensitiveAnnotation: strconv.FormatBool(meta.Sensitive),
		})
		if err := r.beside(name, u); err != nil {
			return err
		}
	}
	return nil
}

// views adds the views, which clients evaluate.
func (r *renderer) views() error {
	for _, name := range r.files.in("views", ".yaml", ".yml") {
		docs, err := documents(name, r.files[name])
		if err != nil {
			return err
		}
		for _, doc := range docs {
			if err := r.beside(name, &unstructured.Unstructured{Object: doc}); err != nil {
				return err
			}
		}
	}
	for _, name := range r.files.in("views", ".cue") {
		if err := r.configMap(name, "template", string(r.files[name])); err != nil {
			return err
		}
	}
	return nil
}

// schemas adds the schemas of forms, which clients show.
func (r *renderer) schemas() error {
	for _, name := range r.files.in("schemas", ".yaml", ".yml") {
		text, err := jsonOf(name, r.files[name])
		if err != nil {
			return err
		}
		if err := r.configMap(name, "ui-schema", string(text)); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) configMap(file, key, text string) error {
	name, _, _ := strings.Cut(path.Base(file), ".")
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{key: text}}}
	u.SetName(name)
	return r.beside(file, u)
}

func (r *renderer) readNotes() error {
	if r.notes == nil {
		return nil
	}
	files := append([]render.Source{*r.notes}, r.shared...)
	if r.template != nil {
		files = append(files, *r.template)
	}
	values, err := r.evaluate(files, "notes")
	if err != nil {
		return err
	}
	r.out.Notes, _ = values["notes"].(string)
	return nil
}

// place adds a policy that deploys an addon to managed clusters, if the metadata asks for that and
// the template does not say it itself.
func (r *renderer) place() {
	d := r.DeployTo
	if d == nil || !d.RuntimeCluster && !d.RuntimeClusterOld || r.template != nil {
		return
	}
	policies, _ := r.spec["policies"].([]any)
	for _, p := range policies {
		if p, ok := p.(map[string]any); ok && p["type"] == plan.TypeTopology {
			r.warn("deployTo has no effect: the template has the topology policy %v", p["name"])
			return
		}
	}
	name, properties := "deploy-addon-to-all-clusters", map[string]any{"clusterLabelSelector": map[string]any{}}
	if names, _ := r.in.Parameters[ClustersParameter].([]any); len(names) > 0 {
		if !slices.Contains(names, any(oam.LocalCluster)) {
			names = append(slices.Clone(names), oam.LocalCluster)
		}
		name, properties = "deploy-addon-to-specified-clusters", map[string]any{"clusters": names}
	}
	r.spec["policies"] = append(policies, map[string]any{"name": name, "type": plan.TypeTopology, "properties": properties})
	r.known[ClustersParameter] = true
}

// finish sets the components, the labels and the list of definitions.
func (r *renderer) finish() {
	for _, name := range slices.Sorted(maps.Keys(r.in.Parameters)) {
		if !r.known[name] {
			r.warn("the parameter %s has no effect: the addon does not declare it", name)
		}
	}
	if r.components == nil {
		r.components = []any{}
	}
	r.spec["components"] = r.components
	r.out.Beside = slices.DeleteFunc(r.out.Beside, func(u *unstructured.Unstructured) bool {
		return slices.ContainsFunc(bound, func(key string) bool { name := u.GetAnnotations()[key]; return name != "" && !r.has(name) })
	})
	annotations := map[string]string{}
	maps.Copy(annotations, r.out.Application.GetAnnotations())
	for _, u := range r.out.Beside {
		label(u, oam.AddonLabel, r.Name)
		label(u, oam.AddonVersionLabel, r.Version)
		if key := DefinitionAnnotations[render.Kind(u.GetKind())]; key != "" {
			annotations[key] = strings.TrimPrefix(annotations[key]+","+u.GetName(), ",")
		}
	}
	if len(annotations) > 0 {
		r.out.Application.SetAnnotations(annotations)
	}
	label(r.out.Application, oam.AddonLabel, r.Name)
	label(r.out.Application, oam.AddonVersionLabel, r.Version)
	if r.in.Registry != "" {
		label(r.out.Application, oam.AddonRegistryLabel, r.in.Registry)
	}
}

// has reports whether the Application has a component of the name.
func (r *renderer) has(component string) bool {
	return slices.ContainsFunc(r.components, func(c any) bool {
		comp, _ := c.(map[string]any)
		return comp["name"] == component
	})
}

func label(u *unstructured.Unstructured, key, value string) {
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	u.SetLabels(labels)
}
