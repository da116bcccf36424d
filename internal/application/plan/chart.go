package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/render"
)

// ErrNotYet marks something that is still being fetched or evaluated. The plan is made again when
// it is available.
var ErrNotYet = errors.New("it is being fetched")

// Charts fetches the charts that components use.
type Charts interface {
	// Chart returns a chart, and the values in the objects that values names, in that order. Errors
	// that wrap ErrNotYet are temporary.
	Chart(namespace string, from *ChartSource, values []ValuesFrom) (*chart.Chart, []map[string]any, error)
}

// ChartSource says where a chart is fetched from.
type ChartSource struct {
	// Source is the name of a chart in the repository RepoURL, or the URL of a chart.
	Source  string `json:"source"`
	RepoURL string `json:"repoURL,omitempty"`
	// Version may be a range of versions. Empty and "latest" mean the newest version.
	Version string `json:"version,omitempty"`
	Auth    *struct {
		SecretRef SecretRef `json:"secretRef"`
	} `json:"auth,omitempty"`
}

// SecretRef names a Secret. An empty namespace is the Application's.
type SecretRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// ValuesFrom names an object that contains values for a chart.
type ValuesFrom struct {
	// Kind is Secret or ConfigMap.
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	// Key is the key in the object. Default values.yaml.
	Key      string `json:"key,omitempty"`
	Optional bool   `json:"optional,omitempty"`
}

// chartUse is the output of a component's template that deploys a chart.
type chartUse struct {
	Chart   ChartSource `json:"chart"`
	Release struct {
		Name      string `json:"name,omitempty"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"release"`
	Values     map[string]any `json:"values,omitempty"`
	ValuesFrom []ValuesFrom   `json:"valuesFrom,omitempty"`
	Options    struct {
		IncludeCRDs *bool `json:"includeCRDs,omitempty"`
		SkipHooks   bool  `json:"skipHooks,omitempty"`
		// The following options are about Helm releases and have no effect, because there is no
		// release.
		withoutEffect
	} `json:"options"`
	// HealthStatus is read by the definition's status section.
	HealthStatus any `json:"healthStatus,omitempty"`
}

// withoutEffect has the options that only make sense for a release.
type withoutEffect struct {
	SkipTests       *bool  `json:"skipTests,omitempty"`
	CreateNamespace *bool  `json:"createNamespace,omitempty"`
	Timeout         string `json:"timeout,omitempty"`
	MaxHistory      *int   `json:"maxHistory,omitempty"`
	Atomic          *bool  `json:"atomic,omitempty"`
	Wait            *bool  `json:"wait,omitempty"`
	WaitForJobs     *bool  `json:"waitForJobs,omitempty"`
	Force           *bool  `json:"force,omitempty"`
	RecreatePods    *bool  `json:"recreatePods,omitempty"`
	CleanupOnFail   *bool  `json:"cleanupOnFail,omitempty"`
	Cache           any    `json:"cache,omitempty"`
}

// given returns the names of the options whose values ask for something else than what happens
// anyway.
func (w *withoutEffect) given() []string {
	var out []string
	for name, value := range map[string]*bool{
		"createNamespace": w.CreateNamespace, "atomic": w.Atomic, "force": w.Force, "recreatePods": w.RecreatePods,
		"cleanupOnFail": w.CleanupOnFail,
	} {
		if value != nil && *value {
			out = append(out, name)
		}
	}
	for name, value := range map[string]*bool{"skipTests": w.SkipTests, "wait": w.Wait} {
		if value != nil && !*value { // tests are not run, and health is waited for
			out = append(out, name)
		}
	}
	if w.Timeout != "" {
		out = append(out, "timeout")
	}
	slices.Sort(out)
	return out
}

// chart makes the objects of a component that deploys a chart, and of its traits. The template's
// output is a chartUse instead of a workload.
func (p *Plan) chart(in *Input, comp *Component, req *render.Request, target Target) ([]Resource, []int, error) {
	made, err := render.Render(req)
	if err != nil {
		return nil, nil, err
	}
	resources, err := p.chartObjects(in, comp, made.Objects(), target)
	return resources, made.Late, err
}

// chartObjects is chart for what the templates made.
func (p *Plan) chartObjects(in *Input, comp *Component, objects []render.Object, target Target) ([]Resource, error) {
	if len(objects) == 0 || objects[0].Name != "" {
		return nil, errors.New("the template has no output, which would say which chart it is")
	}
	out, err := complete(in, comp, objects[1:], target.Kinds)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(map[string]any(objects[0].Object))
	if err != nil {
		return nil, err
	}
	var use chartUse
	if err := Strict(data, &use); err != nil {
		return nil, err
	}
	c, rendered, namespace, err := p.renderChart(in, comp, &use, target, "HelmChart "+comp.Name)
	if err != nil {
		return nil, err
	}
	at := *comp
	at.Namespace = namespace
	kinds := kindsWithChart{target.Kinds, map[schema.GroupKind]bool{}}
	for i := range rendered.Objects {
		kinds.take(rendered.Objects[i].Object)
	}
	for i := range rendered.Objects {
		o := &rendered.Objects[i]
		u := unstructured.Unstructured{Object: o.Object}
		name := strings.ToLower(u.GetKind()) + "-" + u.GetName()
		r, err := newResource(in, &at, &render.Object{Object: o.Object, Name: name, TraitIndex: -1}, kinds)
		if err != nil {
			return nil, fmt.Errorf("chart %s %s: %s %s: %w", c.Name, c.Version, u.GetKind(), u.GetName(), err)
		}
		if r.Wave = o.Wave; r.Wave > 0 {
			r.Stage = oam.PostDispatch
		}
		if o.Once != nil {
			if r.Once, err = json.Marshal(o.Once); err != nil {
				return nil, err
			}
		}
		if o.Hook && (r.GVK.Kind == "Job" || r.GVK.Kind == "Pod") {
			r.RecreateFields = []string{"spec"} // a changed hook runs once more
		}
		out = append(out, *r)
	}
	comp.Notes = rendered.Left
	return out, nil
}

// renderChart fetches and renders a chart. It also returns the namespace of the release. pin is the
// key of the chart's version in Plan.Definitions.
func (p *Plan) renderChart(in *Input, comp *Component, use *chartUse, target Target, pin string) (*chart.Chart, *chart.Rendered, string, error) {
	for _, name := range use.Options.given() {
		p.Warn(fmt.Sprintf("component %s: properties.options.%s has no effect: there is no release", comp.Name, name))
	}
	if in.Charts == nil {
		return nil, nil, "", errors.New("charts cannot be fetched here")
	}
	if version, _, ok := strings.Cut(in.Pinned[pin], "@"); ok && use.Chart.Version != "" || ok && use.Chart.RepoURL != "" {
		use.Chart.Version = version
	}
	c, values, err := in.Charts.Chart(in.Namespace, &use.Chart, use.ValuesFrom)
	if err != nil {
		return nil, nil, "", fmt.Errorf("chart: %w", err)
	}
	p.Definitions[pin] = c.Version + "@" + c.Digest
	release := chart.Request{
		Release: cmp.Or(use.Release.Name, comp.Name), Namespace: cmp.Or(use.Release.Namespace, comp.Namespace), Revision: in.RevisionNum,
		KubeVersion: target.Version.GitVersion, APIVersions: target.APIs, Now: in.Now,
		SkipCRDs: use.Options.IncludeCRDs != nil && !*use.Options.IncludeCRDs, SkipHooks: use.Options.SkipHooks,
	}
	for _, v := range append(values, use.Values) {
		release.Values = chart.MergeValues(release.Values, v)
	}
	rendered, err := c.Render(in.Run, &release)
	if err != nil {
		return nil, nil, "", fmt.Errorf("chart %s %s: %w", c.Name, c.Version, err)
	}
	return c, rendered, release.Namespace, nil
}

// chartAnswer answers a call of vela/helm in a component's template with the objects of a chart. Hooks
// are left out, because the template says nothing about when they run.
func (p *Plan) chartAnswer(in *Input, comp *Component, target Target, params string) (map[string]any, error) {
	var use chartUse
	if err := Strict([]byte(params), &use); err != nil {
		return nil, err
	}
	use.Options.SkipHooks = true
	c, rendered, namespace, err := p.renderChart(in, comp, &use, target, "HelmChart "+comp.Name+" "+use.Chart.Source)
	if err != nil {
		return nil, err
	}
	kinds := kindsWithChart{target.Kinds, map[schema.GroupKind]bool{}}
	for i := range rendered.Objects {
		kinds.take(rendered.Objects[i].Object)
	}
	resources := []any{}
	for i := range rendered.Objects {
		o := &rendered.Objects[i]
		u := unstructured.Unstructured{Object: o.Object}
		if o.Once != nil {
			if comp.once == nil {
				comp.once = map[string]json.RawMessage{}
			}
			if comp.once[onceKey(u.GetKind(), u.GetName())], err = json.Marshal(o.Once); err != nil {
				return nil, err
			}
		}
		namespaced, err := kinds.Namespaced(u.GroupVersionKind())
		if err != nil {
			return nil, fmt.Errorf("chart %s %s: %s %s: %w", c.Name, c.Version, u.GetKind(), u.GetName(), err)
		}
		if namespaced && u.GetNamespace() == "" {
			u.SetNamespace(namespace)
		}
		resources = append(resources, u.Object)
	}
	comp.Notes = append(comp.Notes, rendered.Left...)
	return map[string]any{"resources": resources}, nil
}

// onceKey is the key of an object in Component.once.
func onceKey(kind, name string) string { return kind + "/" + name }

// kindsWithChart knows the kinds of a cluster, and those that the chart's own
// CustomResourceDefinitions add.
type kindsWithChart struct {
	Kinds
	namespaced map[schema.GroupKind]bool
}

// take adds the kind that a CustomResourceDefinition defines. It ignores other objects.
func (b kindsWithChart) take(o map[string]any) {
	u := unstructured.Unstructured{Object: o}
	if u.GetKind() != "CustomResourceDefinition" {
		return
	}
	group, _, _ := unstructured.NestedString(o, "spec", "group")
	kind, _, _ := unstructured.NestedString(o, "spec", "names", "kind")
	scope, _, _ := unstructured.NestedString(o, "spec", "scope")
	b.namespaced[schema.GroupKind{Group: group, Kind: kind}] = scope == "Namespaced"
}

// Namespaced implements Kinds.
func (b kindsWithChart) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	if namespaced, ok := b.namespaced[gvk.GroupKind()]; ok {
		return namespaced, nil
	}
	return b.Kinds.Namespaced(gvk)
}
