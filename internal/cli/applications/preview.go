package applications

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// Preview is what an application makes.
type Preview struct {
	// Objects are the objects in the places of the application.
	Objects []plan.Resource
	// Unknown says what cannot be told without deploying it.
	Unknown  []string
	Warnings []string
}

// previewed compiles definitions by run.
type previewed struct {
	definitionSet
	run render.Run
}

func (p previewed) Component(_, name string) (*render.Template, error) {
	return p.compileBy(p.run, render.Component, name)
}

func (p previewed) Trait(_, name string) (*render.Template, error) {
	return p.compileBy(p.run, render.Trait, name)
}

func (p previewed) Policy(_, name string) (*render.Template, error) {
	return p.compileBy(p.run, render.Policy, name)
}

// NewPreview renders an application with the definitions of the cluster and with those among
// objects, which precede them. Definitions and charts are evaluated by run.
func NewPreview(ctx context.Context, client *applications.Client, run render.Run, errOut io.Writer, u *unstructured.Unstructured,
	objects []*unstructured.Unstructured) (*Preview, error) {
	var app oam.Application
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &app, true); err != nil {
		return nil, fmt.Errorf("application %s: %w", u.GetName(), err)
	}
	set, err := definitionsIn(ctx, client, app.Namespace)
	if err == nil {
		err = set.add(objects)
	}
	if err != nil {
		return nil, err
	}
	defs := previewed{set, run}
	out := &Preview{}
	p, err := planned(&plan.Input{
		Namespace: app.Namespace, Name: app.Name, Revision: app.Name + "-v1", RevisionNum: 1, Labels: app.Labels, Annotations: app.Annotations,
		Spec: previewSpec(&app.Spec), Whole: &app.Spec, Clusters: offline(), Charts: newFetchedCharts(ctx, errOut, run), Now: time.Now(), Run: run,
	}, defs)
	if err != nil {
		out.Unknown = append(out.Unknown, err.Error())
		return out, nil
	}
	for _, err := range p.Broken() {
		out.Unknown = append(out.Unknown, err.Error())
	}
	out.Warnings = p.Warnings
	out.Objects = p.Resources
	return out, nil
}

// previewSpec returns a spec whose policies choose namespaces and no clusters: what an application
// makes in one of them it makes in the others.
func previewSpec(spec *oam.ApplicationSpec) *oam.ApplicationSpec {
	out := *spec
	out.Policies = nil
	for _, p := range spec.Policies {
		if p.Type == plan.TypeTopology {
			var in struct {
				Namespace string `json:"namespace,omitempty"`
			}
			if json.Unmarshal(plan.RawOf(p.Properties), &in) != nil || in.Namespace == "" {
				continue
			}
			data, err := json.Marshal(in)
			if err != nil {
				continue
			}
			p.Properties = &runtime.RawExtension{Raw: data}
		}
		out.Policies = append(out.Policies, p)
	}
	return &out
}
