package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// Selects reports whether an object, of which labels are the labels, is one of this controller.
func (s *Settings) Selects(labels map[string]string) bool {
	return labels[wf.LabelInstanceID] == s.InstanceID
}

// Limits reports whether the number of workflows that run at a time is limited.
func (s *Settings) Limits() bool { return s.Parallelism > 0 || s.NamespaceParallelism > 0 }

// Options returns the options for building pods, with what the settings add.
func (s *Settings) Options(o pods.Options) pods.Options {
	o.MainContainer, o.Executor, o.Images, o.InstanceID = s.MainContainer, s.Executor, s.Images, s.InstanceID
	return o
}

// Spec returns the defaults of specs, or nil if there are none.
func (s *Settings) Spec() *wf.WorkflowSpec {
	if s.Defaults == nil {
		return nil
	}
	return &s.Defaults.Spec
}

// Merge returns the spec of a workflow that refers to no template, with the defaults of the fields
// that it does not set. The templates are shared with spec if the defaults have none.
func (d *Defaults) Merge(spec *wf.WorkflowSpec) (*wf.WorkflowSpec, error) {
	own := *spec
	if len(d.Spec.Templates) == 0 {
		own.Templates = nil // merging them by JSON would cost most
	}
	out, err := engine.MergeSpec(&d.Spec, &own)
	if err != nil {
		return nil, fmt.Errorf("workflowDefaults: %w", err)
	}
	if len(d.Spec.Templates) == 0 {
		out.Templates = spec.Templates
	}
	return out, nil
}

// Added returns the entries of defaults that own lacks.
func Added(own, defaults map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range defaults {
		if _, set := own[key]; !set {
			out[key] = value
		}
	}
	return out
}

// mayState are the fields of a spec that a workflow may set itself although it is restricted to
// what a template says: they choose what the template offers, or when the workflow ends and goes.
var mayState = []string{
	"workflowTemplateRef", "arguments", "entrypoint", "suspend", "shutdown", "parallelism", "priority",
	"activeDeadlineSeconds", "ttlStrategy", "podGC", "volumeClaimGC", "archiveLogs", "workflowMetadata", "metrics",
}

// Refuses returns an error that says why the settings forbid a workflow with this spec to run.
func (s *Settings) Refuses(spec *wf.WorkflowSpec) error {
	if s.Restriction == Unrestricted {
		return nil
	}
	rule := fmt.Sprintf("workflowRestrictions.templateReferencing in the ConfigMap %s is %s", s.From, s.Restriction)
	if spec.WorkflowTemplateRef == nil {
		return errors.New("workflowTemplateRef: is required: " + rule)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	var forbidden []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if value := string(fields[field]); !slices.Contains(mayState, field) && value != "{}" && value != "null" {
			forbidden = append(forbidden, field)
		}
	}
	if len(forbidden) > 0 {
		return fmt.Errorf("%s: only the template may set: %s", strings.Join(forbidden, ", "), rule)
	}
	return nil
}
