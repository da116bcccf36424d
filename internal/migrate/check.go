package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/admission"
	"lockstep.dev/lockstep/internal/batch"
	"lockstep.dev/lockstep/internal/batch/cronjob"
	"lockstep.dev/lockstep/internal/batch/flow"
	"lockstep.dev/lockstep/internal/podgroup"
	"lockstep.dev/lockstep/internal/scheduler/config"
	"lockstep.dev/lockstep/internal/unsupported"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// SchedulerConfigSuffix ends the names of the keys of ConfigMaps that are read as scheduler
// configurations.
const SchedulerConfigSuffix = "scheduler.conf"

// Object is an object to check.
type Object struct {
	*unstructured.Unstructured
	// Source is where the object comes from, such as jobs.yaml:12; empty for an object of a cluster.
	Source string
}

// Part is a part of an object that does not simply work.
type Part struct {
	Field   string         `json:"field,omitempty"`
	Verdict config.Verdict `json:"verdict"`
	Text    string         `json:"text"`
}

// Result says what becomes of an object.
type Result struct {
	Kind      string `json:"kind"`
	Group     string `json:"group,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Source    string `json:"source,omitempty"`
	// Verdict is the worst of the parts' verdicts, and config.Works if there is no part.
	Verdict config.Verdict `json:"verdict"`
	Parts   []Part         `json:"parts,omitempty"`
}

// Options configure Check.
type Options struct {
	// Served are the kinds that Lockstep serves.
	Served map[schema.GroupKind]bool
	// Refused returns what the API server refuses in an object. If it is not set, that is not checked.
	Refused func(*unstructured.Unstructured) []admission.Refusal
	// Applications returns what is wrong with applications and definitions, as an error for the object
	// with the same index; nil for the others. If it is not set, they are not rendered.
	Applications func([]*unstructured.Unstructured) []error
	// Workflows returns the problems of workflows, templates and crons among the objects. If it is not
	// set, they are not linted.
	Workflows func([]runtime.Object) []engine.Problem
}

// groups are the API groups whose objects are checked, whatever their kind.
var groups = []string{
	"batch.volcano.sh", "scheduling.volcano.sh", "bus.volcano.sh", "flow.volcano.sh", "topology.volcano.sh",
	"shard.volcano.sh", "nodeinfo.volcano.sh", "config.volcano.sh", "training.volcano.sh", "datadependency.volcano.sh",
	"argoproj.io", "core.oam.dev",
}

// Groups returns the API groups whose objects Check checks.
func Groups() []string { return slices.Clone(groups) }

// Check checks the objects together: a workflow may refer to a template among them, an application
// to a definition. Objects of other groups are skipped, except ConfigMaps with a scheduler
// configuration.
func Check(objects []Object, o Options) []Result {
	var results []Result
	var typed []runtime.Object
	index := map[runtime.Object]int{} // of results
	var rendered []*unstructured.Unstructured
	var renderedAt []int
	for _, object := range objects {
		gk := object.GroupVersionKind().GroupKind()
		configuration := schedulerConfig(object.Unstructured)
		if !slices.Contains(groups, gk.Group) && configuration == "" {
			continue
		}
		r := Result{
			Kind: gk.Kind, Group: gk.Group, Namespace: object.GetNamespace(), Name: cmp.Or(object.GetName(), object.GetGenerateName()),
			Source: object.Source,
		}
		at := len(results)
		switch {
		case configuration != "":
			r.schedulerConfig(configuration)
		case !o.Served[gk]:
			r.add("", config.Missing, "Lockstep does not serve this kind")
		default:
			if decoded := r.decode(object.Unstructured); decoded != nil {
				typed = append(typed, decoded)
				index[decoded] = at
				r.unsupported(decoded)
				r.differences(decoded)
				if err := Invalid(decoded); err != nil {
					field, text, _ := strings.Cut(err.Error(), ": ")
					r.add(field, config.Missing, text)
				}
			}
			if o.Refused != nil {
				r.refused(o.Refused(object.Unstructured))
			}
			if gk.Group == "core.oam.dev" {
				rendered, renderedAt = append(rendered, object.Unstructured), append(renderedAt, at)
			}
		}
		results = append(results, r)
	}
	if o.Workflows != nil {
		for _, p := range o.Workflows(typed) {
			verdict := config.Missing
			if p.Warning {
				verdict = config.Differs
			}
			results[index[p.Object]].add(p.Where, verdict, p.Message)
		}
	}
	if o.Applications != nil {
		for i, err := range o.Applications(rendered) {
			if err != nil {
				results[renderedAt[i]].add("", config.Missing, err.Error())
			}
		}
	}
	for i := range results {
		results[i].judge()
	}
	return results
}

// schedulerConfig returns the scheduler configuration in a ConfigMap, or "".
func schedulerConfig(u *unstructured.Unstructured) string {
	if u.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("ConfigMap") {
		return ""
	}
	data, _, _ := unstructured.NestedStringMap(u.Object, "data")
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if strings.HasSuffix(key, SchedulerConfigSuffix) {
			return data[key]
		}
	}
	return ""
}

func (r *Result) add(field string, v config.Verdict, text string) {
	r.Parts = append(r.Parts, Part{field, v, text})
}

// schedulerConfig checks a scheduler configuration. Parts that simply work are not listed.
func (r *Result) schedulerConfig(text string) {
	_, findings, err := config.Parse([]byte(text))
	if err != nil {
		r.add("", config.Missing, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	for _, f := range findings {
		if f.Verdict == config.Works {
			continue
		}
		field := f.Path
		if !strings.Contains(field, f.Name) {
			field += " " + f.Name
		}
		r.add(field, f.Verdict, f.Text)
	}
}

// decode decodes an object into its Go type, and lists the fields that the type does not have. It
// returns nil if the object cannot be decoded, or is of a version that Lockstep does not serve.
func (r *Result) decode(u *unstructured.Unstructured) runtime.Object {
	decoded, err := scheme.Scheme.New(u.GroupVersionKind())
	if err != nil {
		r.add("apiVersion", config.Missing, "Lockstep does not serve "+u.GetAPIVersion())
		return nil
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, decoded, true)
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		for _, e := range strict.Errors() {
			r.add("", config.Missing, e.Error())
		}
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, decoded)
	}
	if err != nil {
		r.add("", config.Missing, err.Error())
		return nil
	}
	return decoded
}

// unsupported lists the fields that have no effect.
func (r *Result) unsupported(object runtime.Object) {
	for _, f := range WithoutEffect(object) {
		r.add(f.Field, config.Missing, f.Text)
	}
}

// NoEffect is a field that an object uses and that has no effect.
type NoEffect struct {
	Field, Text string
	// Holds is true if the object does not start because of it.
	Holds bool
}

// WithoutEffect returns the fields of an object that have no effect.
func WithoutEffect(object runtime.Object) []NoEffect {
	switch o := object.(type) {
	case *batchv1alpha1.Job:
		return noEffect("", batch.UnsupportedIn(o))
	case *batchv1alpha1.CronJob:
		return append(noEffect("", cronjob.UnsupportedIn(o)),
			noEffect("spec.jobTemplate.", batch.UnsupportedIn(&batchv1alpha1.Job{Spec: o.Spec.JobTemplate.Spec}))...)
	case *flowv1alpha1.JobTemplate:
		return noEffect("", batch.UnsupportedIn(&batchv1alpha1.Job{Spec: o.Spec}))
	case *schedulingv1beta1.Queue:
		return noEffect("", batch.UnsupportedInQueue(o))
	case *schedulingv1beta1.PodGroup:
		return noEffect("", podgroup.UnsupportedIn(o))
	case *wf.WorkflowEventBinding:
		return []NoEffect{{Field: "spec", Text: "Argo's server acts on it, and Lockstep does not"}}
	}
	return nil
}

// Invalid returns the error for which the controller of an object does not work on it, although the API
// server accepts it. The message begins with the path of the field.
func Invalid(object runtime.Object) error {
	switch o := object.(type) {
	case *batchv1alpha1.CronJob:
		return cronjob.Validate(o)
	case *flowv1alpha1.JobFlow:
		return flow.Validate(o)
	}
	return nil
}

func noEffect[T any](prefix string, fields []unsupported.Field[T]) (out []NoEffect) {
	for _, f := range fields {
		text := "has no effect"
		if f.Holds {
			text = "is not supported: the object does not start"
		}
		out = append(out, NoEffect{prefix + f.Path, text, f.Holds})
	}
	return out
}

// refused lists what the API server refuses, except unknown fields, which decode lists.
func (r *Result) refused(refusals []admission.Refusal) {
	for _, f := range refusals {
		if f.Message != admission.UnknownField {
			r.add(f.Field, config.Missing, "the API server refuses it: "+f.Message)
		}
	}
}

// verdicts lists the verdicts from the best to the worst.
var verdicts = []config.Verdict{config.Works, config.Needless, config.Differs, config.Missing}

// judge sets the verdict.
func (r *Result) judge() {
	r.Verdict = config.Works
	for _, p := range r.Parts {
		if slices.Index(verdicts, p.Verdict) > slices.Index(verdicts, r.Verdict) {
			r.Verdict = p.Verdict
		}
	}
	if r.Verdict == config.Needless {
		r.Verdict = config.Works
	}
}

// String returns the object's kind and name: Job train/resnet.
func (r *Result) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s", r.Kind, name)
}

// ServedBy returns the kinds of CustomResourceDefinitions.
func ServedBy(crds []*unstructured.Unstructured) map[schema.GroupKind]bool {
	served := map[schema.GroupKind]bool{}
	for _, u := range crds {
		if u.GetKind() != "CustomResourceDefinition" {
			continue
		}
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
		served[schema.GroupKind{Group: group, Kind: kind}] = true
	}
	return served
}
