package manager_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

const jobOfOnePod = `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec: {tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]}
`

const workflowOfOnePod = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: %s}
spec: {entrypoint: main, templates: [{name: main, container: {image: busybox}}]}
`

const cronEveryMinute = `
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: %s}
spec: {schedules: ["* * * * *"], workflowSpec: {entrypoint: main, templates: [{name: main, suspend: {}}]}}
`

const groupOfOnePod = `
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %[1]s}
spec: {minMember: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, annotations: {scheduling.k8s.io/group-name: %[1]s}}
spec: {schedulerName: lockstep, containers: [{name: c, image: busybox}]}
`

// poison is an object on which a part of the manager panics.
type poison struct {
	part     string
	resource schema.GroupVersionResource
	manifest string
	says     []string
}

func poisons() map[string]poison {
	failed := "the manager failed in internal/manager_test."
	workflows, crons := wf.GroupVersion.WithResource("workflows"), wf.GroupVersion.WithResource("cronworkflows")
	groups := scheduling.GroupVersion.WithResource("podgroups")
	left := "is left alone until it is changed: " + failed
	return map[string]poison{
		"job":          {"jobs", jobs, jobOfOnePod, []string{`"type":"Valid"`, left, "ManagerFailed"}},
		"watched":      {"watch of jobs", jobs, jobOfOnePod, []string{`"type":"Valid"`, left}},
		"unplaceable":  {"scheduler", jobs, jobOfOnePod, []string{failed}},
		"workflow":     {"workflows", workflows, workflowOfOnePod, []string{`"type":"SpecError"`, left}},
		"cron":         {"crons", crons, cronEveryMinute, []string{`"type":"SpecError"`, left}},
		"group":        {"podgroups", groups, groupOfOnePod, []string{`"type":"Valid"`, left, "ManagerFailed"}},
		"application":  {"applications", appResource, "", []string{left}},
		"seen-by-cron": {"watch of cronworkflows", crons, cronEveryMinute, []string{`"type":"SpecError"`, left}},
	}
}

// poisonedQueue is a queue on whose status the manager panics.
const poisonedQueue = "poisoned-queue"

// TestAPanicConcernsOneObject checks that an object on which the manager panics is set apart and
// reports it, and that everything else continues, also after a restart, which writes nothing. When
// the object is changed, the manager works on it again.
func TestAPanicConcernsOneObject(t *testing.T) {
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithApplications(), localtest.WithNodes(localcluster.Nodes{Count: 2}))
	all := poisons()
	var mu sync.Mutex
	hits, cured := map[string]int{}, map[string]bool{}
	failpoint.Arm(t, func(part, key string) {
		mu.Lock()
		defer mu.Unlock()
		_, name, _ := strings.Cut(key[strings.LastIndex(key, "/"):], "/")
		if part == "queues" && name == poisonedQueue && !cured[name] {
			panic("a failpoint")
		}
		if p, found := all[name]; found && p.part == part && !cured[name] {
			hits[name]++
			panic("a failpoint")
		}
	})
	stop, err := managertest.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, c)
	canary := func(name string) {
		t.Helper()
		e.apply(fmt.Sprintf(jobOfOnePod, name) + "---" + fmt.Sprintf(workflowOfOnePod, name) + "---" + fmt.Sprintf(groupOfOnePod, name+"-group") +
			"---\n" + raw(name, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+"}}"))
		e.says(jobs, name, `"phase":"Running"`)
		e.says(wf.GroupVersion.WithResource("workflows"), name, `"phase":"Running"`)
		e.says(scheduling.GroupVersion.WithResource("podgroups"), name+"-group", `"phase":"Running"`)
		e.says(appResource, name, `"status":"running"`)
	}
	manifest := func(name string, p poison) string {
		if p.manifest == "" {
			return raw(name, "{apiVersion: v1, kind: ConfigMap, metadata: {name: of-"+name+"}}")
		}
		return fmt.Sprintf(p.manifest, name)
	}
	for name, p := range all {
		e.apply(manifest(name, p))
	}
	// Queues have no namespace. Jobs in a queue whose status is no longer written continue, because
	// they belong to many users.
	queues := e.dyn.Resource(scheduling.GroupVersion.WithResource("queues"))
	for _, name := range []string{poisonedQueue, "sound"} {
		_, err := queues.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": scheduling.GroupVersion.String(), "kind": "Queue", "metadata": map[string]any{"name": name}, "spec": map[string]any{"weight": int64(1)},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	stateOf := func(name string) string {
		u, err := queues.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		state, _, _ := unstructured.NestedString(u.Object, "status", "state")
		return state
	}
	e.apply(strings.Replace(fmt.Sprintf(jobOfOnePod, "in-poisoned-queue"), "spec: {", "spec: {queue: "+poisonedQueue+", ", 1))
	for name, p := range all {
		e.says(p.resource, name, p.says...)
	}
	canary("first")
	e.says(jobs, "in-poisoned-queue", `"phase":"Running"`)
	e.eventually("the other queue is open", func() error {
		if state := stateOf("sound"); state != "Open" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
	if state := stateOf(poisonedQueue); state != "" {
		t.Errorf("the poisoned queue is %q", state)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if n := hits["application"]; n != 1 {
		t.Errorf("the application, which nobody has changed, was tried %d times", n)
	}
	mu.Unlock()

	// The same after a restart: with the objects present, nothing is reported twice.
	mu.Lock()
	clear(hits)
	mu.Unlock()
	before := versionsOf(e, all)
	if stop, err = managertest.Run(c); err != nil {
		t.Fatal(err)
	}
	canary("second")
	e.eventually("every object is worked on once more", func() error {
		mu.Lock()
		defer mu.Unlock()
		for name := range all {
			if hits[name] == 0 {
				return fmt.Errorf("nothing has failed on %s", name)
			}
		}
		return nil
	})
	if after := versionsOf(e, all); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("a restart wrote the objects: before %v, after %v", before, after)
	}

	// A changed object is worked on again, and its condition is removed.
	mu.Lock()
	for name := range all {
		cured[name] = true
	}
	cured[poisonedQueue] = true
	mu.Unlock()
	if _, err := queues.Patch(t.Context(), poisonedQueue, types.MergePatchType, []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the queue is taken up again", func() error {
		if state := stateOf(poisonedQueue); state != "Open" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
	for name, p := range all {
		_, err := e.dyn.Resource(p.resource).Namespace(e.ns).Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"changed":"yes"}}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, p := range all {
		if name == "unplaceable" {
			continue // its request is the same as before
		}
		e.eventually(name+" is taken up again", func() error {
			u, err := e.dyn.Resource(p.resource).Namespace(e.ns).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && strings.Contains(fmt.Sprint(u.Object["status"]), "is left alone") {
				err = fmt.Errorf("it says %v", u.Object["status"])
			}
			return err
		})
	}
	e.says(jobs, "job", `"phase":"Running"`)
	e.says(scheduling.GroupVersion.WithResource("podgroups"), "group", `"phase":"Running"`)
	e.says(wf.GroupVersion.WithResource("workflows"), "workflow", `"phase":"Running"`)
	e.says(appResource, "application", `"status":"running"`)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func versionsOf(e *env, all map[string]poison) map[string]string {
	e.Helper()
	out := map[string]string{}
	for name, p := range all {
		u, err := e.dyn.Resource(p.resource).Namespace(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			e.Fatal(err)
		}
		out[name] = u.GetResourceVersion()
	}
	return out
}
