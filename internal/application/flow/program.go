package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/dependency"
)

// Step types that this package implements.
const (
	TypeSuspend = "suspend"
	TypeGroup   = "step-group"
)

// Step is one step of a program.
type Step struct {
	oam.WorkflowStepBase
	// Sub has the steps of a group, and Mode says how they follow one another.
	Sub  []Step
	Mode oam.WorkflowMode

	timeout time.Duration
}

// Program is a validated workflow with defaults set.
type Program struct {
	Mode  oam.WorkflowExecuteMode
	Steps []Step

	byName map[string]*Step
	// giver has, by output, the step that produces it.
	giver map[string]string
}

// Compile validates a workflow's names, dependencies and durations. A step without a name is called
// step-N by its position, counted from 1.
func Compile(spec *oam.WorkflowSpec) (*Program, error) {
	p := &Program{
		Mode:   oam.WorkflowExecuteMode{Steps: oam.WorkflowModeStep, SubSteps: oam.WorkflowModeDAG},
		byName: map[string]*Step{}, giver: map[string]string{},
	}
	if spec.Mode != nil {
		if spec.Mode.Steps != "" {
			p.Mode.Steps = spec.Mode.Steps
		}
		if spec.Mode.SubSteps != "" {
			p.Mode.SubSteps = spec.Mode.SubSteps
		}
	}
	p.Steps = make([]Step, len(spec.Steps))
	for i := range spec.Steps {
		in, s := &spec.Steps[i], &p.Steps[i]
		s.WorkflowStepBase, s.Mode = in.WorkflowStepBase, in.Mode
		where := fmt.Sprintf("workflow.steps[%d]", i)
		if s.Name == "" {
			s.Name = fmt.Sprintf("step-%d", i+1)
		}
		if s.Mode == "" {
			s.Mode = p.Mode.SubSteps
		}
		if err := p.add(s, where); err != nil {
			return nil, err
		}
		if s.Type != TypeGroup {
			if len(in.SubSteps) > 0 {
				return nil, fmt.Errorf("%s (%s): only a step of type %s has subSteps", where, s.Name, TypeGroup)
			}
			continue
		}
		if len(in.SubSteps) == 0 {
			return nil, fmt.Errorf("%s (%s): a %s needs subSteps", where, s.Name, TypeGroup)
		}
		s.Sub = make([]Step, len(in.SubSteps))
		for j := range in.SubSteps {
			sub := &s.Sub[j]
			sub.WorkflowStepBase = in.SubSteps[j]
			at := fmt.Sprintf("%s.subSteps[%d]", where, j)
			if sub.Name == "" {
				sub.Name = fmt.Sprintf("%s-%d", s.Name, j+1)
			}
			if sub.Type == TypeGroup {
				return nil, fmt.Errorf("%s (%s): a %s cannot be in another", at, sub.Name, TypeGroup)
			}
			if err := p.add(sub, at); err != nil {
				return nil, err
			}
		}
	}
	return p, p.checkDependencies()
}

// add validates a step and registers its name and outputs.
func (p *Program) add(s *Step, where string) error {
	if p.byName[s.Name] != nil {
		return fmt.Errorf("%s: two steps have the name %s", where, s.Name)
	}
	p.byName[s.Name] = s
	if s.Timeout != "" {
		d, err := time.ParseDuration(s.Timeout)
		if err != nil || d <= 0 {
			return fmt.Errorf("%s (%s): timeout %q is not a duration such as 30s", where, s.Name, s.Timeout)
		}
		s.timeout = d
	}
	for _, o := range s.Outputs {
		if other := p.giver[o.Name]; other != "" {
			return fmt.Errorf("%s (%s): step %s too has the output %s", where, s.Name, other, o.Name)
		}
		p.giver[o.Name] = s.Name
	}
	if s.Type == TypeSuspend {
		if _, err := suspension(raw(s)); err != nil && len(s.Inputs) == 0 {
			return fmt.Errorf("%s (%s): %w", where, s.Name, err)
		}
	}
	return nil
}

// checkDependencies returns an error for steps that can never start: those with missing or circular
// dependencies.
func (p *Program) checkDependencies() error {
	names := slices.Sorted(maps.Keys(p.byName))
	for _, name := range names {
		for _, d := range p.needs(p.byName[name]) {
			if p.byName[d] == nil {
				return fmt.Errorf("workflow: step %s depends on %s, which does not exist", name, d)
			}
		}
	}
	cycle := dependency.Cycle(names, func(name string) []string {
		s := p.byName[name]
		on := p.needs(s)
		// A group also waits for the dependencies that its steps have outside the group.
		for i := range s.Sub {
			on = append(on, s.Sub[i].Name)
		}
		return on
	})
	if cycle != "" {
		return fmt.Errorf("workflow: step %s depends on itself", cycle)
	}
	return nil
}

// needs returns the steps that a step waits for: those in dependsOn, and those whose outputs it
// takes.
func (p *Program) needs(s *Step) []string {
	out := slices.Clone(s.DependsOn)
	for _, in := range s.Inputs {
		if g := p.giverOf(in.From); g != "" && g != s.Name && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// giverOf returns the step that produces the output that an input takes, or "".
func (p *Program) giverOf(from string) string {
	for name := range namesIn(from) {
		if g := p.giver[name]; g != "" {
			return g
		}
	}
	return ""
}

// Step returns the step of that name, or nil.
func (p *Program) Step(name string) *Step { return p.byName[name] }

// ModeText returns the mode as statuses contain it, for example StepByStep-DAG.
func (p *Program) ModeText() string { return string(p.Mode.Steps) + "-" + string(p.Mode.SubSteps) }

// suspension reads the properties of a suspend step. Without a duration, the step waits until it is
// resumed.
func suspension(raw []byte) (Pause, error) {
	var in struct {
		Duration string `json:"duration,omitempty"`
		Message  string `json:"message,omitempty"`
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &in); err != nil {
			return Pause{}, errors.New("properties: duration and message are texts")
		}
	}
	p := Pause{Message: in.Message}
	if in.Duration == "" {
		return p, nil
	}
	d, err := time.ParseDuration(in.Duration)
	if err != nil || d < 0 {
		return p, fmt.Errorf("properties: duration %q is not a duration such as 30s", in.Duration)
	}
	p.Duration = d
	return p, nil
}
