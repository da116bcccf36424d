package engine

import (
	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// podSettings are the fields of a workflow's spec that shape its pods and may contain the
// workflow's variables. podShape are those that may also contain variables of the individual pod,
// such as pod.name, inputs and retries. podPlace are those that may name an input that only some
// templates have; for example, a volume concerns only the templates that mount it.
var (
	podSettings = []string{
		"volumes", "volumeClaimTemplates", "nodeSelector", "affinity", "tolerations", "imagePullSecrets", "hostAliases",
		"dnsConfig", "serviceAccountName", "schedulerName", "podPriorityClassName", "executor", "artifactRepositoryRef",
		"artifactGC",
	}
	podShape = []string{"podMetadata", "podSpecPatch"}
	podPlace = []string{"volumes", "nodeSelector", "affinity", "tolerations"}
)

// podPrograms are the compiled podShape and podPlace of a spec.
type podPrograms struct{ shape, place *template.Program }

func compileForPods(s *wf.WorkflowSpec) (*podPrograms, error) {
	shape, err := template.CompileFields(s, podShape...)
	if err != nil {
		return nil, err
	}
	place, err := template.CompileFields(s, podPlace...)
	return &podPrograms{shape, place}, err
}

// knownBefore are the namespaces of variables that must have a value before a workflow's pods are
// built.
var knownBefore = []string{"workflow.", "steps.", "tasks."}

// resolveSpec resolves the workflow's variables in the settings that shape its pods.
func (r *Run) resolveSpec() error {
	if r.shape = r.config.Specs.shape(r.spec); r.shape != nil {
		return nil
	}
	program, err := template.CompileFields(r.spec, podSettings...)
	if err != nil {
		return err
	}
	if program.HasTags() {
		r.spec = r.spec.DeepCopy() // the spec is shared with other runs
		if err := program.Apply(r.spec, []template.Scope{r.globals}, knownBefore...); err != nil {
			return err
		}
	}
	if r.shape, err = compileForPods(r.spec); err == nil && !program.HasTags() {
		r.config.Specs.plain(r.spec, r.shape)
	}
	return err
}

// SettingsOf returns the spec that a workflow runs, with the workflow's variables resolved in the
// settings of its pods: for pods that are created after its end. evaluate is Config.Evaluate. An
// error names what cannot be resolved, such as a parameter from a ConfigMap.
func SettingsOf(w *wf.Workflow, evaluate template.Run) (*wf.WorkflowSpec, error) {
	spec := w.EffectiveSpec()
	program, err := template.CompileFields(spec, podSettings...)
	if err != nil || !program.HasTags() {
		return spec, err
	}
	r := New(&wf.Workflow{ObjectMeta: w.ObjectMeta}, Config{Evaluate: evaluate})
	r.spec = spec.DeepCopy()
	if err := r.setGlobals(); err != nil {
		return nil, err
	}
	return r.spec, program.Apply(r.spec, []template.Scope{r.globals}, knownBefore...)
}

// podSpec returns the workflow's spec with the variables of one pod resolved.
func (r *Run) podSpec(passes []template.Scope) (*wf.WorkflowSpec, error) {
	if !r.shape.shape.HasTags() && !r.shape.place.HasTags() {
		return r.spec, nil
	}
	own := *r.spec
	own.Templates = nil // they are shared
	own = *own.DeepCopy()
	own.Templates = r.spec.Templates
	if err := r.shape.shape.Apply(&own, passes, known...); err != nil {
		return nil, err
	}
	return &own, r.shape.place.Apply(&own, passes, knownBefore...)
}
