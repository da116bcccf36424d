package flow

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// jobIn returns the Job of an entry of the JobFlow f, with two pods of a task t.
func jobIn(entry string, phase batch.JobPhase, running int32) *batch.Job {
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "f-" + entry, UID: types.UID("uid-" + entry), CreationTimestamp: metav1.NewTime(noon)}}
	j.Spec.Tasks = []batch.TaskSpec{{Name: "t", Replicas: 2}}
	j.Status.State = batch.JobState{Phase: phase, LastTransitionTime: metav1.NewTime(noon.Add(time.Minute))}
	if running > 0 {
		j.Status.TaskStatusCount = map[string]batch.TaskState{"t": {Phase: map[corev1.PodPhase]int32{corev1.PodRunning: running}}}
	}
	return j
}

func (p plan) describe() string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, j := range p.start {
		add("start %s", j.Name)
	}
	for _, q := range p.ask {
		add("ask %s/%s:%d", q.job, q.task, q.port)
	}
	for _, j := range p.remove {
		add("remove %s", j.Name)
	}
	add("%s", strings.TrimSpace(fmt.Sprintf("%s %s %s", p.status.State.Phase, p.status.State.Reason, p.status.State.Message)))
	var names []string
	for name := range p.status.Conditions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := p.status.Conditions[name]
		add("%s", strings.TrimSpace(fmt.Sprintf("%s %s %s", name, c.Phase, c.Message)))
	}
	return strings.Join(out, "; ")
}

func TestDecide(t *testing.T) {
	const chain = "flows: [{name: a}, {name: b, dependsOn: {targets: [a]}}]"
	probed := func(probe string) string {
		return "flows: [{name: a}, {name: b, dependsOn: {targets: [a], probe: {" + probe + "}}}]"
	}
	jobs := func(list ...*batch.Job) map[string]*batch.Job {
		out := map[string]*batch.Job{}
		for _, j := range list {
			out[j.Name] = j
		}
		return out
	}
	said := func(phase api.Phase, conditions ...string) func(*view) {
		return func(v *view) {
			v.flow.Status.State.Phase = phase
			v.flow.Status.Conditions = map[string]api.Condition{}
			for _, c := range conditions {
				name, phase, _ := strings.Cut(c, " ")
				v.flow.Status.Conditions[name] = api.Condition{Phase: batch.JobPhase(phase)}
			}
		}
	}
	ask := question{job: "uid-a", task: "t", need: 2, port: 80, path: "/ready"}
	const http = "httpGetList: [{taskName: t, port: 80, path: /ready}]"
	for name, c := range map[string]struct {
		spec   string
		jobs   map[string]*batch.Job
		change func(*view)
		want   string
	}{
		"nothing to do":        {"{}", nil, nil, "Succeed"},
		"the first":            {chain, nil, nil, "start f-a; Pending; f-a Waiting; f-b Waiting waits for f-a (Waiting)"},
		"it is there":          {chain, jobs(jobIn("a", "", 0)), nil, "Pending; f-a Pending; f-b Waiting waits for f-a (Pending)"},
		"it runs":              {chain, jobs(jobIn("a", batch.Running, 2)), nil, "Running; f-a Running; f-b Waiting waits for f-a (Running)"},
		"it completes":         {chain, jobs(jobIn("a", batch.Completing, 2)), nil, "Running; f-a Completing; f-b Waiting waits for f-a (Completing)"},
		"it has completed":     {chain, jobs(jobIn("a", batch.Completed, 0)), nil, "start f-b; Running; f-a Completed; f-b Waiting"},
		"all have":             {chain, jobs(jobIn("a", batch.Completed, 0), jobIn("b", batch.Completed, 0)), nil, "Succeed; f-a Completed; f-b Completed"},
		"it failed":            {chain, jobs(jobIn("a", batch.Failed, 0)), nil, "Failed JobFailed Job f-a is Failed; f-a Failed; f-b Waiting"},
		"it was terminated":    {chain, jobs(jobIn("a", batch.Terminated, 0)), nil, "Failed JobFailed Job f-a is Terminated; f-a Terminated; f-b Waiting"},
		"it is suspended":      {chain, jobs(jobIn("a", batch.Aborted, 0)), nil, "Running Aborted Job f-a is suspended; f-a Aborted; f-b Waiting waits for f-a (Aborted)"},
		"failed stays":         {chain, jobs(jobIn("a", batch.Completed, 0)), said(api.Failed), "Failed; f-a Completed; f-b Waiting"},
		"being deleted":        {chain, nil, func(v *view) { v.flow.DeletionTimestamp = &metav1.Time{Time: noon} }, "Terminating; f-a Waiting; f-b Waiting"},
		"no template":          {"flows: [{name: none}]", nil, nil, `Pending TemplateNotFound spec.flows[0].name: there is no JobTemplate "none"; f-none Waiting spec.flows[0].name: there is no JobTemplate "none"`},
		"a circle":             {"flows: [{name: a, dependsOn: {targets: [a]}}]", nil, nil, "Pending InvalidSpec spec.flows[0].dependsOn.targets: flows wait for each other: a waits for a; f-a Waiting"},
		"an error that is new": {"flows: [{name: a}, {name: a}]", jobs(jobIn("a", batch.Completed, 0)), nil, `Running InvalidSpec spec.flows[1].name: "a" is also the name of spec.flows[0]; f-a Completed`},
		"a mistyped patch": {"flows: [{name: a, patch: {jobSpec: {queu: x}}}]", nil, nil,
			`Pending InvalidSpec spec.flows[0].patch.jobSpec: unknown field "queu"; f-a Waiting spec.flows[0].patch.jobSpec: unknown field "queu"`},
		"refused": {chain, nil, func(v *view) { v.refused = map[string]string{"f-a": "no"} },
			"Pending Refused spec.flows[0]: Job f-a: no; f-a Waiting spec.flows[0]: Job f-a: no; f-b Waiting waits for f-a (Waiting)"},
		"refused, and tried again": {chain, nil, func(v *view) { v.refused = map[string]string{"f-a": "no"}; v.held = func(string) bool { return false } },
			"start f-a; Pending Refused spec.flows[0]: Job f-a: no; f-a Waiting spec.flows[0]: Job f-a: no; f-b Waiting waits for f-a (Waiting)"},

		"deleted after its end":            {chain, nil, said(api.Running, "f-a Completed"), "start f-b; Running; f-a Completed; f-b Waiting"},
		"deleted, its end was seen":        {chain, nil, func(v *view) { said(api.Running, "f-a Running")(v); v.gone["f-a"] = batch.Completed }, "start f-b; Running; f-a Completed; f-b Waiting"},
		"deleted before its end":           {chain, nil, said(api.Running, "f-a Running"), "Failed JobDeleted Job f-a was deleted before its end was seen; f-a Terminated the Job was deleted before its end was seen; f-b Waiting"},
		"deleted, as the watch says":       {chain, nil, func(v *view) { v.settled = false; v.gone["f-a"] = batch.Pending }, "Failed JobDeleted Job f-a was deleted before its end was seen; f-a Terminated the Job was deleted before its end was seen; f-b Waiting"},
		"the watch may be behind":          {chain, nil, func(v *view) { said(api.Running, "f-a Running")(v); v.settled = false }, "Running; f-a Running; f-b Waiting waits for f-a (Running)"},
		"it waits, and was never there":    {chain, nil, said(api.Pending, "f-a Waiting"), "start f-a; Pending; f-a Waiting; f-b Waiting waits for f-a (Waiting)"},
		"kept":                             {"{flows: [{name: a}], jobRetainPolicy: retain}", jobs(jobIn("a", batch.Completed, 0)), said(api.Succeed), "Succeed; f-a Completed"},
		"not deleted before it is written": {"{flows: [{name: a}], jobRetainPolicy: delete}", jobs(jobIn("a", batch.Completed, 0)), said(api.Running), "Succeed; f-a Completed"},
		"deleted":                          {"{flows: [{name: a}], jobRetainPolicy: delete}", jobs(jobIn("a", batch.Completed, 0)), said(api.Succeed, "f-a Completed"), "remove f-a; Succeed; f-a Completed"},
		"deleted already":                  {"{flows: [{name: a}], jobRetainPolicy: delete}", nil, said(api.Succeed, "f-a Completed"), "Succeed; f-a Completed"},
		"not deleted if it failed":         {"{flows: [{name: a}], jobRetainPolicy: delete}", jobs(jobIn("a", batch.Failed, 0)), said(api.Failed), "Failed; f-a Failed"},

		"a status":                     {probed("taskStatusList: [{taskName: t, phase: Running}]"), jobs(jobIn("a", batch.Running, 2)), nil, "start f-b; Running; f-a Running; f-b Waiting"},
		"a status that is not there":   {probed("taskStatusList: [{taskName: t, phase: Running}]"), jobs(jobIn("a", batch.Running, 1)), nil, "Running Probe spec.flows[1].dependsOn.probe.taskStatusList[0]: task t of Job f-a: 1 of 2 pods are Running; f-a Running; f-b Waiting spec.flows[1].dependsOn.probe.taskStatusList[0]: task t of Job f-a: 1 of 2 pods are Running"},
		"a status of a completed job":  {probed("taskStatusList: [{taskName: t, phase: Running}]"), jobs(jobIn("a", batch.Completed, 0)), nil, "start f-b; Running; f-a Completed; f-b Waiting"},
		"a status of a job to come":    {probed("taskStatusList: [{taskName: t, phase: Running}]"), nil, nil, "start f-a; Pending; f-a Waiting; f-b Waiting waits for f-a (Waiting)"},
		"a task that no target has":    {probed("taskStatusList: [{taskName: x, phase: Running}]"), nil, nil, `start f-a; Pending InvalidSpec spec.flows[1].dependsOn.probe.taskStatusList[0].taskName: no target has a task "x"; f-a Waiting; f-b Waiting spec.flows[1].dependsOn.probe.taskStatusList[0].taskName: no target has a task "x"`},
		"http is asked":                {probed(http), jobs(jobIn("a", batch.Running, 2)), nil, "ask uid-a/t:80; Running Probe spec.flows[1].dependsOn.probe.httpGetList[0]: task t of Job f-a: not asked yet; f-a Running; f-b Waiting spec.flows[1].dependsOn.probe.httpGetList[0]: task t of Job f-a: not asked yet"},
		"http answers":                 {probed(http), jobs(jobIn("a", batch.Running, 2)), func(v *view) { v.answers = map[question]string{ask: ""} }, "start f-b; Running; f-a Running; f-b Waiting"},
		"http does not answer":         {probed(http), jobs(jobIn("a", batch.Running, 2)), func(v *view) { v.answers = map[question]string{ask: "no"} }, "Running Probe spec.flows[1].dependsOn.probe.httpGetList[0]: task t of Job f-a: no; f-a Running; f-b Waiting spec.flows[1].dependsOn.probe.httpGetList[0]: task t of Job f-a: no"},
		"a target without a probe too": {"flows: [{name: a}, {name: plain}, {name: b, dependsOn: {targets: [a, plain], probe: {taskStatusList: [{taskName: t, phase: Running}]}}}]", jobs(jobIn("a", batch.Running, 2), other()), nil, "Running; f-a Running; f-b Waiting waits for f-plain (Running); f-plain Running"},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{flow: flowOf(t, c.spec), jobs: c.jobs, gone: map[string]batch.JobPhase{}, settled: true, held: func(string) bool { return true }, template: templateOf}
			if c.change != nil {
				c.change(&v)
			}
			if got := decide(v).describe(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// other returns a running Job without the task t.
func other() *batch.Job {
	j := jobIn("plain", batch.Running, 0)
	j.Spec.Tasks[0].Name = "u"
	return j
}

// templateOf returns a JobTemplate with a task t, except for the name none.
func templateOf(name string) *api.JobTemplate {
	if name == "none" {
		return nil
	}
	return &api.JobTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: batch.JobSpec{Tasks: []batch.TaskSpec{{Name: "t", Replicas: 2}}}}
}

// TestEveryFlowEndsAndMakesEachJobOnce runs random JobFlows without circles. Jobs end, and are
// deleted after their end, at random moments, and statuses are written only sometimes, as by a
// manager that restarts.
func TestEveryFlowEndsAndMakesEachJobOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "flows")
		f := &api.JobFlow{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "f"}}
		for i := range n {
			entry := api.Flow{Name: fmt.Sprintf("e%d", i), DependsOn: &api.DependsOn{}}
			for j := range i {
				if rapid.Bool().Draw(t, "waits") {
					entry.DependsOn.Targets = append(entry.DependsOn.Targets, fmt.Sprintf("e%d", j))
				}
			}
			f.Spec.Flows = append(f.Spec.Flows, entry)
		}
		jobs, made := map[string]*batch.Job{}, map[string]bool{}
		for step := 0; ; step++ {
			if step > 2000 {
				t.Fatalf("it does not end: %+v", f.Status)
			}
			p := decide(view{flow: f, jobs: jobs, gone: map[string]batch.JobPhase{}, settled: true, held: func(string) bool { return false }, template: templateOf})
			for _, j := range p.start {
				if made[j.Name] {
					t.Fatalf("%s was created twice", j.Name)
				}
				made[j.Name] = true
				entry := f.Spec.Flows[slices.IndexFunc(f.Spec.Flows, func(e api.Flow) bool { return jobName("f", e.Name) == j.Name })]
				for _, target := range entry.DependsOn.Targets {
					if f.Status.Conditions[jobName("f", target)].Phase != batch.Completed && jobs[jobName("f", target)].Status.State.Phase != batch.Completed {
						t.Fatalf("%s began before %s had completed", j.Name, target)
					}
				}
				jobs[j.Name] = j
			}
			if rapid.Bool().Draw(t, "the status is written") {
				f.Status = p.status
				if f.Status.State.Phase == api.Succeed {
					break
				}
			}
			for _, name := range slices.Sorted(func(yield func(string) bool) {
				for name := range jobs {
					if !yield(name) {
						return
					}
				}
			}) {
				j := jobs[name]
				switch rapid.IntRange(0, 3).Draw(t, "what happens") {
				case 0:
					j.Status.State.Phase = batch.Completed
				case 1: // its time to live is over: see Unrecorded
					if f.Status.Conditions[name].Phase.Finished() {
						delete(jobs, name)
					}
				}
			}
		}
		if len(made) != n {
			t.Fatalf("%d of %d Jobs were created", len(made), n)
		}
	})
}

func TestStatusOf(t *testing.T) {
	j := jobIn("a", batch.Running, 2)
	j.Status.RetryCount = 1
	v := view{flow: flowOf(t, "flows: [{name: a}]"), jobs: map[string]*batch.Job{"f-a": j}, settled: true, template: templateOf}
	s := decide(v).status
	if !slices.Equal(s.RunningJobs, []string{"f-a"}) || len(s.JobStatusList) != 1 || s.JobStatusList[0].RestartCount != 1 || s.Conditions["f-a"].TaskStatusCount["t"].Phase[corev1.PodRunning] != 2 {
		t.Errorf("%+v", s)
	}
	v.flow.Status = s
	if again := decide(v).status; !sameStatus(&s, &again) {
		t.Errorf("the same state has another status: %+v, %+v", s, again)
	}
	done := jobIn("a", batch.Completed, 0)
	done.Status.State.LastTransitionTime = metav1.NewTime(noon.Add(time.Hour))
	v.jobs = map[string]*batch.Job{"f-a": done}
	s = decide(v).status
	h := s.JobStatusList[0]
	if !slices.Equal(s.CompletedJobs, []string{"f-a"}) || len(h.RunningHistories) != 2 || !h.RunningHistories[0].EndTimestamp.Time.Equal(noon.Add(time.Hour)) || !h.EndTimestamp.Time.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v", s)
	}
}
