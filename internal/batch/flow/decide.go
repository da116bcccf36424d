package flow

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

// view is what decide decides from.
type view struct {
	flow *api.JobFlow
	// jobs are the Jobs that the JobFlow controls, by name, and gone are the last phases of those
	// that were seen to be deleted.
	jobs map[string]*batch.Job
	gone map[string]batch.JobPhase
	// settled means that jobs are at least as new as flow: a Job that the status has and that is
	// not in jobs is deleted.
	settled bool
	// template returns a JobTemplate of the namespace, or nil.
	template func(name string) *api.JobTemplate
	// answers are the answers to plan.ask.
	answers map[question]string
	// refused are the server's answers to the creation of Jobs, by name; held reports whether a
	// refused Job has to wait before it is tried again.
	refused map[string]string
	held    func(job string) bool
}

// plan is the result of decide: what to do about a JobFlow.
type plan struct {
	// start are the Jobs to create, remove those to delete.
	start, remove []*batch.Job
	// ask are probes without an answer that a Job waits for.
	ask []question
	// probing means that a Job waits for the answer to a probe to change.
	probing bool
	// unsettled means that a Job may be deleted or not be in the cache yet.
	unsettled bool
	status    api.JobFlowStatus
}

// state is what is known of the Job of one entry.
type state struct {
	entry *api.Flow
	name  string
	job   *batch.Job // nil if it does not exist
	// phase is empty if the Job was never created, and Waiting if there is a reason.
	phase           batch.JobPhase
	lost            bool // deleted before its end was seen
	reason, message string
}

// decide returns the plan for a JobFlow.
func decide(v view) plan {
	f := v.flow
	p := plan{}
	//   1. Find the Job of each entry.
	states := make([]*state, len(f.Spec.Flows))
	byEntry := map[string]*state{}
	for i := range f.Spec.Flows {
		states[i] = v.state(&f.Spec.Flows[i])
		byEntry[states[i].entry.Name] = states[i]
		p.unsettled = p.unsettled || states[i].job == nil && states[i].phase != "" && !states[i].phase.Finished()
	}
	//   2. Decide which Jobs to create, unless the JobFlow has ended or is wrong.
	invalid := Validate(f)
	before := f.Status.State
	phase, reason, message := phaseOf(states)
	switch {
	case f.DeletionTimestamp != nil:
		phase, reason, message = api.Terminating, "", ""
	case before.Phase.Finished():
		phase, reason, message = before.Phase, before.Reason, before.Message
		if phase == api.Succeed && f.Spec.JobRetainPolicy == api.Delete {
			p.remove = v.existing()
		}
	case phase == api.Failed:
	case invalid != nil:
		if reason, message = api.ReasonInvalidSpec, invalid.Error(); phase == api.Succeed {
			phase = api.Running
		}
	case !phase.Finished():
		for i, s := range states {
			if s.phase == "" {
				v.begin(&p, i, s, byEntry)
			}
		}
		reason, message = blockage(states)
	}
	//   3. Say so.
	p.status = statusOf(&f.Status, states, v.jobs)
	p.status.State = api.State{Phase: phase, Reason: reason, Message: message}
	slices.SortFunc(p.remove, func(a, b *batch.Job) int { return strings.Compare(a.Name, b.Name) })
	return p
}

// state finds the Job of an entry.
func (v *view) state(entry *api.Flow) *state {
	s := &state{entry: entry, name: jobName(v.flow.Name, entry.Name)}
	if s.job = v.jobs[s.name]; s.job != nil {
		s.phase = cmp.Or(s.job.Status.State.Phase, batch.Pending)
		return s
	}
	said := v.flow.Status.Conditions[s.name].Phase
	last, seen := v.gone[s.name]
	switch {
	case said.Finished():
		s.phase = said
	case seen && last.Finished():
		s.phase = last
	case seen || said != "" && said != api.Waiting && v.settled:
		s.phase, s.lost = batch.Terminated, true
		s.reason, s.message = api.ReasonJobDeleted, "the Job was deleted before its end was seen"
	case said != api.Waiting:
		s.phase = said
	}
	return s
}

// existing returns the Jobs of the JobFlow that are not being deleted.
func (v *view) existing() (out []*batch.Job) {
	for _, j := range v.jobs {
		if j.DeletionTimestamp == nil {
			out = append(out, j)
		}
	}
	return out
}

// phaseOf returns the phase that follows from the Jobs.
func phaseOf(states []*state) (phase api.Phase, reason, message string) {
	completed, started := 0, 0
	for _, s := range states {
		switch {
		case s.lost:
			return api.Failed, api.ReasonJobDeleted, "Job " + s.name + " was deleted before its end was seen"
		case s.phase == batch.Failed || s.phase == batch.Terminated:
			message = fmt.Sprintf("Job %s is %s", s.name, s.phase)
			if s.job != nil && s.job.Status.State.Message != "" {
				message += ": " + s.job.Status.State.Message
			}
			return api.Failed, api.ReasonJobFailed, message
		case s.phase == batch.Completed:
			completed++
			started++
		case s.phase != "" && s.phase != batch.Pending:
			started++
		}
	}
	switch {
	case completed == len(states):
		return api.Succeed, "", ""
	case started > 0:
		return api.Running, "", ""
	}
	return api.Pending, "", ""
}

// begin decides about an entry whose Job was never created: to create it, or what it waits for.
func (v *view) begin(p *plan, i int, s *state, byEntry map[string]*state) {
	wait := func(reason, message string) { s.phase, s.reason, s.message = api.Waiting, reason, message }
	if reason, message := v.waitsFor(p, i, s, byEntry); reason != "" {
		wait(reason, message)
		return
	}
	template := v.template(s.entry.Name)
	if template == nil {
		wait(api.ReasonTemplateNotFound, fmt.Sprintf("spec.flows[%d].name: there is no JobTemplate %q", i, s.entry.Name))
		return
	}
	job, err := jobOf(v.flow, i, template)
	switch {
	case err != nil:
		wait(api.ReasonInvalidSpec, err.Error())
		return
	case v.refused[s.name] != "":
		wait(api.ReasonRefused, fmt.Sprintf("spec.flows[%d]: Job %s: %s", i, s.name, v.refused[s.name]))
		if v.held(s.name) {
			return
		}
	default:
		wait("", "")
	}
	p.start = append(p.start, job)
}

// waitsFor returns why the dependencies of entry i are not met, or empty strings.
func (v *view) waitsFor(p *plan, i int, s *state, byEntry map[string]*state) (reason, message string) {
	d := s.entry.DependsOn
	if d == nil {
		return "", ""
	}
	path := fmt.Sprintf("spec.flows[%d].dependsOn.probe", i)
	all := probesOf(path, d.Probe)
	var waits []string
	known := true // whether the tasks of all targets are known
	for _, target := range d.Targets {
		t := byEntry[target]
		var tasks map[string]*batch.TaskSpec
		if len(all) > 0 {
			tasks = v.tasksOf(t)
		}
		known = known && tasks != nil
		mine := false
		for j := range all {
			if task, found := tasks[all[j].task]; found {
				all[j].found, mine = true, true
				if t.job != nil && t.phase != batch.Completed && message == "" {
					message = v.probe(p, &all[j], t.job, task)
				}
			}
		}
		if t.phase != batch.Completed && (!mine || t.job == nil) {
			waits = append(waits, fmt.Sprintf("%s (%s)", t.name, cmp.Or(t.phase, api.Waiting)))
		}
	}
	for _, q := range all {
		if known && !q.found {
			return api.ReasonInvalidSpec, fmt.Sprintf("%s.taskName: no target has a task %q", q.path, q.task)
		}
	}
	switch {
	case len(waits) > 0:
		return api.ReasonDependencies, "waits for " + strings.Join(waits, ", ")
	case message != "":
		return api.ReasonProbe, message
	}
	return "", ""
}

// tasksOf returns the tasks of a target by name, from its Job or else its template, or nil if there
// is neither.
func (v *view) tasksOf(t *state) map[string]*batch.TaskSpec {
	job := t.job
	if job == nil {
		template := v.template(t.entry.Name)
		if template == nil {
			return nil
		}
		job = &batch.Job{Spec: template.Spec}
		if t.entry.Patch != nil {
			merged, err := merge(template.Spec.DeepCopy(), t.entry.Patch.JobSpec.Raw)
			if err != nil {
				return nil
			}
			job.Spec = *merged
		}
	}
	tasks := map[string]*batch.TaskSpec{}
	for i := range job.Spec.Tasks {
		tasks[job.TaskName(i)] = &job.Spec.Tasks[i]
	}
	return tasks
}

// taskProbe is one element of the lists of a Probe.
type taskProbe struct {
	path, task string
	found      bool            // a target has the task
	phase      corev1.PodPhase // of a taskStatusList
	ask        question        // otherwise
}

func probesOf(path string, p *api.Probe) (out []taskProbe) {
	if p == nil {
		return nil
	}
	for i, h := range p.HTTPGetList {
		q := question{path: h.Path, port: h.Port}
		if h.HTTPHeader != nil {
			q.header, q.value = h.HTTPHeader.Name, h.HTTPHeader.Value
		}
		out = append(out, taskProbe{path: fmt.Sprintf("%s.httpGetList[%d]", path, i), task: h.TaskName, ask: q})
	}
	for i, s := range p.TCPSocketList {
		out = append(out, taskProbe{path: fmt.Sprintf("%s.tcpSocketList[%d]", path, i), task: s.TaskName, ask: question{tcp: true, port: s.Port}})
	}
	for i, s := range p.TaskStatusList {
		out = append(out, taskProbe{path: fmt.Sprintf("%s.taskStatusList[%d]", path, i), task: s.TaskName, phase: s.Phase})
	}
	return out
}

// probe returns why a probe of a task does not succeed, or an empty string.
func (v *view) probe(p *plan, t *taskProbe, job *batch.Job, task *batch.TaskSpec) string {
	need := max(1, task.Min())
	if t.phase != "" {
		phases := job.Status.TaskStatusCount[t.task].Phase
		n := phases[t.phase]
		if t.phase == corev1.PodRunning {
			n += phases[corev1.PodSucceeded]
		}
		if n >= need {
			return ""
		}
		return fmt.Sprintf("%s: task %s of Job %s: %d of %d pods are %s", t.path, t.task, job.Name, n, need, t.phase)
	}
	q := t.ask
	q.job, q.task, q.need = job.UID, t.task, int(min(need, probedPods))
	answer, asked := v.answers[q]
	switch {
	case !asked:
		p.ask, answer = append(p.ask, q), "not asked yet"
	case answer == "":
		return ""
	}
	p.probing = true
	return fmt.Sprintf("%s: task %s of Job %s: %s", t.path, t.task, job.Name, answer)
}

// blockage returns the first reason why a Job does not go on, other than that the Jobs before it
// run.
func blockage(states []*state) (reason, message string) {
	for _, s := range states {
		switch {
		case s.phase == api.Waiting && s.reason != "" && s.reason != api.ReasonDependencies:
			return s.reason, s.message
		case s.phase == batch.Aborted:
			return string(batch.Aborted), "Job " + s.name + " is suspended"
		}
	}
	return "", ""
}
