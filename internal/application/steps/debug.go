package steps

import (
	"encoding/json"
	"fmt"
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// Clients show the values of steps, and find their logs, in ConfigMaps. They cost writes, so only
// Applications with the policy debug have them. They are objects of the Application, as if the steps
// applied them.

// Keys of the ConfigMaps.
const (
	debugKey     = "debug"      // values of a step, as CUE
	logConfigKey = "logConfig"  // where logs are, by step
	varsKey      = "vars"       // outputs of steps, as CUE
	partsKey     = "components" // clients decode it, and use nothing of it
)

// debugs reports whether an Application has the policy debug.
func debugs(spec *oam.ApplicationSpec) bool {
	return slices.ContainsFunc(spec.Policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeDebug })
}

// contextName returns the name of the ConfigMap that says where the logs of an Application's steps are.
func contextName(app string) string { return "workflow-" + app + "-context" }

// logConfig says where the logs of a step are, in the form that clients read.
type logConfig struct {
	Data   bool            `json:"data,omitempty"`
	Source json.RawMessage `json:"source,omitempty"`
}

// show keeps the values of a step, and where its logs are, for clients.
func show(c *Runner, a *deploy.State, w *Run, p *deploy.Progress, step, id string, s *render.StepState) error {
	keep := func(name string, data map[string]any) error {
		x := &action{&render.Action{Do: "apply"}, c, a, w, p, step}
		_, _, err := x.apply(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": data,
			"metadata": map[string]any{"name": name, "namespace": a.Key.Namespace},
		})
		if err != nil {
			return fmt.Errorf("policy debug: ConfigMap %s: %w", name, err)
		}
		return nil
	}
	if err := keep(a.Key.Name+"-"+id+"-debug", map[string]any{debugKey: s.Shown}); err != nil {
		return err
	}
	logs := w.logs(contextName(a.Key.Name))
	if len(s.Logs) > 0 || s.LogSource != nil {
		logs[step] = logConfig{len(s.Logs) > 0, s.LogSource}
	}
	text, err := json.Marshal(logs)
	if err != nil {
		return err
	}
	vars := []byte("{}")
	if outputs := a.Tracker.Flow.Outputs; len(outputs) > 0 {
		if vars, err = json.Marshal(outputs); err != nil {
			return err
		}
	}
	return keep(contextName(a.Key.Name), map[string]any{logConfigKey: string(text), varsKey: string(vars), partsKey: "{}"})
}

// logs returns where the logs of the steps are that the ConfigMap of that name has.
func (w *Run) logs(name string) map[string]logConfig {
	out := map[string]logConfig{}
	for i := range w.applied {
		r := &w.applied[i]
		if r.Ref.Name != name || r.Ref.GVK.Kind != "ConfigMap" || r.Ref.GVK.Group != "" {
			continue
		}
		var cm struct {
			Data map[string]string `json:"data"`
		}
		if json.Unmarshal(r.JSON, &cm) == nil {
			_ = json.Unmarshal([]byte(cm.Data[logConfigKey]), &out) // it is made anew otherwise
		}
	}
	return out
}
