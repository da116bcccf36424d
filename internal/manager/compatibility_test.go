package manager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// The tests of this file are of fields and arguments in docs/compatibility.md that no other test
// tries on an API server.

func (e *env) pod(name string) *corev1.Pod {
	e.Helper()
	p, err := e.core.CoreV1().Pods(e.ns).Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return p
}

// TestPodsAreAsTheJobSays checks what pods have from their job and its templates.
func TestPodsAreAsTheJobSays(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.apply(strings.ReplaceAll(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAMESPACE}
spec: {accessModes: [ReadWriteMany], capacity: {storage: 1Gi}, hostPath: {path: /tmp}, storageClassName: ""}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}, storageClassName: "", volumeName: NAMESPACE}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: j
  annotations:
    volcano.sh/preemptable: "false"
    volcano.sh/cooldown-time: 10m
    volcano.sh/revocable-zone: z1
    volcano.sh/jdb-min-available: "1"
    example.com/own: x
spec:
  schedulerName: volcano
  runningEstimate: 10m
  volumes: [{mountPath: /data, volumeClaimName: shared}]
  tasks:
  - name: main
    replicas: 2
    template:
      metadata:
        labels: {team: a}
        annotations: {lockstep.dev/sim-duration: 2s, example.com/note: b}
      spec:
        initContainers: [{name: first, image: busybox, command: ["true"]}]
        containers:
        - {name: main, image: busybox, command: [sh, -c, "exit 0"], env: [{name: A, value: b}], resources: {requests: {cpu: 100m}}}
        restartPolicy: Never
  - replicas: 1
    template:
      metadata: {annotations: {lockstep.dev/sim-duration: 2s}}
      spec:
        hostNetwork: true
        schedulerName: lockstep
        containers: [{name: main, image: busybox, resources: {requests: {cpu: 100m}}}]
        restartPolicy: Never
`, "NAMESPACE", e.ns))
	t.Cleanup(func() {
		_ = e.core.CoreV1().PersistentVolumes().Delete(context.Background(), e.ns, metav1.DeleteOptions{})
	})
	j := e.until("j", inPhase(batch.Running))
	p, q := e.pod("j-main-1"), e.pod("j-default1-0")
	if p.Spec.SchedulerName != "volcano" || q.Spec.SchedulerName != "lockstep" {
		t.Errorf("schedulers %s and %s", p.Spec.SchedulerName, q.Spec.SchedulerName)
	}
	common := map[string]string{
		"volcano.sh/task-index": "1", "volcano.sh/task-spec": "main", "volcano.sh/job-name": "j", "volcano.sh/queue-name": "default",
	}
	labels := maps.Clone(common)
	maps.Copy(labels, map[string]string{"team": "a", "volcano.sh/job-namespace": e.ns})
	if !maps.Equal(p.Labels, labels) {
		t.Errorf("labels %v", p.Labels)
	}
	notes := maps.Clone(common)
	maps.Copy(notes, map[string]string{
		"example.com/note": "b", "volcano.sh/job-version": "0", "volcano.sh/job-retry-count": "0", "volcano.sh/template-uid": "j-main",
		"scheduling.k8s.io/group-name": "j-" + string(j.UID), "volcano.sh/preemptable": "false", "volcano.sh/cooldown-time": "10m",
		"volcano.sh/revocable-zone": "z1", "volcano.sh/jdb-min-available": "1",
	})
	for key, value := range notes {
		if p.Annotations[key] != value {
			t.Errorf("annotation %s is %q, not %q", key, p.Annotations[key], value)
		}
	}
	if _, own := p.Annotations["example.com/own"]; own {
		t.Error("the pod has an annotation of the job that is not the scheduler's")
	}
	if owner := metav1.GetControllerOf(p); owner == nil || owner.UID != j.UID {
		t.Errorf("the owner is %v", owner)
	}
	if q.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet || p.Spec.DNSPolicy != corev1.DNSClusterFirst {
		t.Errorf("DNS policies %s and %s", q.Spec.DNSPolicy, p.Spec.DNSPolicy)
	}
	c := p.Spec.Containers[0]
	if c.Image != "busybox" || !slices.Equal(c.Command, []string{"sh", "-c", "exit 0"}) || c.Env[0].Value != "b" {
		t.Errorf("the container is %s", asJSON(c))
	}
	for _, c := range []corev1.Container{c, p.Spec.InitContainers[0], q.Spec.Containers[0]} {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data" }) {
			t.Errorf("container %s mounts %v", c.Name, c.VolumeMounts)
		}
	}
	if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == "shared"
	}) {
		t.Errorf("volumes %s", asJSON(p.Spec.Volumes))
	}
	s := e.until("j", inPhase(batch.Completed)).Status
	if s.RunningDuration == nil || s.Succeeded != 3 || s.TaskStatusCount["default1"].Phase[corev1.PodSucceeded] != 1 {
		t.Errorf("status %s", asJSON(s))
	}
	phases := map[batch.JobPhase]bool{}
	for _, c := range s.Conditions {
		if c.Type == "" {
			phases[c.Status] = true
		}
	}
	if !phases[batch.Pending] || !phases[batch.Running] || !phases[batch.Completed] {
		t.Errorf("conditions %s", asJSON(s.Conditions))
	}
}

// policyJob returns a job of two pods with fields of its spec.
func policyJob(name, fields string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  %s
  tasks:
  - name: main
    replicas: 2
    template:
      spec:
        terminationGracePeriodSeconds: 0
        restartPolicy: Never
        containers: [{name: main, image: busybox, resources: {requests: {cpu: 100m}}}]`, name, fields)
}

// TestEventsAndActions lets each event happen to a job with a policy on it.
func TestEventsAndActions(t *testing.T) {
	t.Parallel()
	e := start(t)
	// A node on which the pods of one job must run, until its label is removed.
	nodes, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	label := func(value string) {
		t.Helper()
		data := fmt.Appendf(nil, `{"metadata":{"labels":{"only":%s}}}`, value)
		if _, err := e.core.CoreV1().Nodes().Patch(context.Background(), nodes.Items[3].Name, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	label(`"` + e.ns + `"`)
	t.Cleanup(func() { label("null") })

	failed := func(job string) { e.setPodStatus(job+"-main-0", corev1.PodStatus{Phase: corev1.PodFailed}) }
	deleted := func(job string) {
		if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), job+"-main-0", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	version := func(n int32) func(*batch.Job) error {
		return func(j *batch.Job) error {
			if j.Status.Version != n || j.Status.RetryCount != 1 {
				return errors.New("it was not restarted")
			}
			return inPhase(batch.Running)(j)
		}
	}
	cases := map[string]struct {
		fields  string
		happens func(job string)
		then    func(*batch.Job) error
	}{
		"any-fails": {`policies: [{event: "*", action: CompleteJob}]`, failed, inPhaseBecause(batch.Completed, bus.PodFailedEvent)},
		"any-lost":  {`policies: [{event: "*", action: AbortJob}]`, deleted, inPhaseBecause(batch.Aborted, bus.PodEvictedEvent)},
		"list":      {`policies: [{events: [PodFailed, PodEvicted], action: TerminateJob}]`, deleted, inPhaseBecause(batch.Terminated, bus.PodEvictedEvent)},
		"completes": {`policies: [{event: TaskCompleted, action: AbortJob}]`, func(job string) {
			for i := range 2 {
				e.setPodStatus(fmt.Sprintf("%s-main-%d", job, i), corev1.PodStatus{Phase: corev1.PodSucceeded})
			}
		}, inPhaseBecause(batch.Aborted, bus.TaskCompletedEvent)},
		"updated": {`policies: [{event: JobUpdated, action: RestartJob}]`, func(job string) {
			e.patchJob(job, `[{"op":"replace","path":"/spec/tasks/0/replicas","value":3}]`)
		}, version(1)},
		"task":    {`policies: [{event: PodFailed, action: RestartTask}]`, failed, version(0)},
		"no-run":  {"maxRetry: 0\n  policies: [{event: PodFailed, action: RestartJob}]", failed, inPhase(batch.Failed)},
		"unknown": {`policies: [{event: Unknown, action: AbortJob}]`, func(job string) { label("null"); deleted(job) }, inPhaseBecause(batch.Aborted, bus.JobUnknownEvent)},
		"command": {"", func(job string) { e.command(bus.CompleteJobAction, "Job", job) }, inPhase(batch.Completed)},
		"restart": {"", func(job string) { e.command(bus.RestartJobAction, "Job", job) }, version(1)},
	}
	for name, c := range cases {
		text := policyJob(name, c.fields)
		if name == "unknown" {
			text = strings.Replace(text, "restartPolicy: Never", "restartPolicy: Never\n        nodeSelector: {only: "+e.ns+"}", 1)
		}
		e.apply(text)
	}
	for name := range cases {
		e.runs(name, 2)
	}
	for name, c := range cases {
		c.happens(name)
	}
	for name, c := range cases {
		e.until(name, c.then)
	}
	e.eventually("an event says which action was carried out, and why", func() error {
		events := e.eventsOf("any-lost")
		for _, event := range events {
			if event.Reason == "ExecuteAction" && event.Message == "AbortJob: pod any-lost-main-0 was evicted" {
				return nil
			}
		}
		return fmt.Errorf("the events are %s", asJSON(events))
	})
}

// roleJob returns a job of two tasks a and b, of 1 and 2 pods, with plugins.
func roleJob(name, plugins string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  plugins: %s
  tasks:
  - {name: a, replicas: 1, template: {spec: {containers: [{name: x, image: busybox}, {name: z, image: busybox}]}}}
  - {name: b, replicas: 2, template: {spec: {containers: [{name: x, image: busybox}, {name: z, image: busybox}]}}}`, name, plugins)
}

// TestArgumentsOfPlugins sets each argument of the plugins to another value than its default.
func TestArgumentsOfPlugins(t *testing.T) {
	t.Parallel()
	e := start(t)
	for name, plugins := range map[string]string{
		"svc": `{svc: ["--inject-hosts-env=false"]}`,
		"tf":  `{tensorflow: ["--ps=none", "--worker=b", "--chief=a", "--evaluator=no", "--port=3333"]}`,
		"tg":  `{tensorflow: ["--ps=a", "--evaluator=b"]}`,
		"pt": `{pytorch: ["--master=a", "--worker=b", "--port=24000", "--wait-master-enabled=true", "--wait-master-timeout=7",` +
			` "--wait-master-image=waiter:1"]}`,
		"mpi": `{mpi: ["--master=a", "--worker=b", "--port=2022"]}`,
		"ray": `{ray: ["--head=a", "--headContainer=z", "--worker=b", "--workerContainer=x", "--port=7000", "--dashboardPort=7001", "--clientPort=7002"]}`,
		"hc":  `{hcclrank: ["--master=b", "--worker=a"]}`,
	} {
		e.apply(roleJob(name, plugins))
	}
	pods := map[string]corev1.Pod{}
	for _, job := range []string{"svc", "tf", "tg", "pt", "mpi", "ray", "hc"} {
		e.until(job, inPhase(batch.Running))
		for _, p := range e.podsOf(job) {
			pods[p.Name] = p
		}
	}
	value := func(pod, name string) string { p := pods[pod]; return envOf(&p.Spec.Containers[0])[name] }
	if n := len(pods["svc-a-0"].Spec.Containers[0].Env); n != 0 || pods["svc-a-0"].Spec.Hostname != "svc-a-0" {
		t.Errorf("svc: %d variables", n)
	}
	for pod, want := range map[string]string{
		"tf-a-0": `{"cluster":{"chief":["tf-a-0.tf:3333"],"worker":["tf-b-0.tf:3333","tf-b-1.tf:3333"]},"task":{"type":"chief","index":0}}`,
		"tf-b-1": `{"cluster":{"chief":["tf-a-0.tf:3333"],"worker":["tf-b-0.tf:3333","tf-b-1.tf:3333"]},"task":{"type":"worker","index":1}}`,
		"tg-b-1": `{"cluster":{"evaluator":["tg-b-0.tg:2222","tg-b-1.tg:2222"],"ps":["tg-a-0.tg:2222"]},"task":{"type":"evaluator","index":1}}`,
	} {
		if got := value(pod, "TF_CONFIG"); got != want {
			t.Errorf("%s: TF_CONFIG is %s", pod, got)
		}
	}
	for name, want := range map[string]string{"MASTER_ADDR": "pt-a-0.pt", "MASTER_PORT": "24000", "WORLD_SIZE": "3", "RANK": "2"} {
		if got := value("pt-b-1", name); got != want {
			t.Errorf("pytorch: %s is %q", name, got)
		}
	}
	if init := pods["pt-b-0"].Spec.InitContainers; len(init) != 1 || init[0].Image != "waiter:1" || !strings.Contains(asJSON(init), "7") {
		t.Errorf("pytorch: the workers have the init containers %s", asJSON(init))
	}
	opens := func(pod string, container int, port int32) bool {
		return slices.ContainsFunc(pods[pod].Spec.Containers[container].Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == port })
	}
	if value("mpi-a-0", "MPI_HOST") != "mpi-b-0.mpi,mpi-b-1.mpi" || !opens("mpi-a-0", 0, 2022) || !opens("mpi-b-1", 1, 2022) {
		t.Errorf("mpi: %s", asJSON(pods["mpi-a-0"].Spec.Containers))
	}
	head, worker := pods["ray-a-0"].Spec.Containers, pods["ray-b-0"].Spec.Containers
	if len(head[0].Command) != 0 || len(head[1].Command) != 3 || !strings.Contains(head[1].Command[2], "--port=7000 --dashboard-port=7001 --ray-client-server-port=7002") {
		t.Errorf("ray: the head runs %s", asJSON(head))
	}
	if len(worker[1].Command) != 0 || len(worker[0].Command) != 3 || !strings.Contains(worker[0].Command[2], "--address=ray-a-0.ray:7000") {
		t.Errorf("ray: a worker runs %s", asJSON(worker))
	}
	if !opens("ray-a-0", 1, 7000) || !opens("ray-a-0", 1, 7001) || !opens("ray-a-0", 1, 7002) {
		t.Errorf("ray: the head has the ports %s", asJSON(head[1].Ports))
	}
	for pod, rank := range map[string]string{"hc-b-0": "0", "hc-b-1": "1", "hc-a-0": "2"} {
		if got := pods[pod].Annotations["hccl/rankIndex"]; got != rank {
			t.Errorf("hcclrank: pod %s has rank %q", pod, got)
		}
	}
}

// TestQueuesAsTheirFieldsSay checks the order of queues by weight and priority, the capability of a
// parent, the order in a FIFO queue, and that a queue with reclaimable: false keeps its pods.
func TestQueuesAsTheirFieldsSay(t *testing.T) {
	e, _ := startEvicting(t)
	var names []string
	queue := func(name, spec string) string {
		t.Helper()
		name = e.ns + "-" + name
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: %s", name, spec))
		names = append(names, name)
		return name
	}
	t.Cleanup(func() {
		for _, name := range slices.Backward(names) {
			_ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	// 8 pods of 4 CPUs fill the cluster.
	full := func(name, queue string) { t.Helper(); e.apply(jobYAML(name, 8, "queue: "+queue, "")); e.runs(name, 8) }

	//   1. Shares of 3:1 by weight.
	three, one := queue("three", "{weight: 3}"), queue("one", "{weight: 1}")
	full("before", "default")
	e.apply(jobYAML("w1", 8, "minAvailable: 1\n  queue: "+one, ""))
	e.apply(jobYAML("w3", 8, "minAvailable: 1\n  queue: "+three, ""))
	e.waits("w1", "cpu")
	e.waits("w3", "cpu")
	e.deleteJob("before")
	e.eventually("the places are divided", func() error {
		if w3, w1 := len(e.podsOf("w3")), len(e.podsOf("w1")); w3 != 6 || w1 != 2 {
			return fmt.Errorf("%d and %d pods; want 6 and 2", w3, w1)
		}
		return nil
	})
	e.deleteJob("w1")
	e.deleteJob("w3")

	//   2. The queue of higher priority is first.
	low, high := queue("low", "{priority: 1}"), queue("high", "{priority: 10}")
	full("before2", "default")
	e.apply(jobYAML("l", 8, "queue: "+low, ""))
	e.waits("l", "cpu")
	e.apply(jobYAML("h", 8, "queue: "+high, ""))
	e.waits("h", "cpu")
	e.deleteJob("before2")
	e.runs("h", 8)
	e.hasNoPods("l")
	e.deleteJob("l")
	e.deleteJob("h")

	//   3. A parent's capability holds for all queues below it.
	parent := queue("parent", "{capability: {cpu: 8}}")
	left, right := queue("left", "{parent: "+parent+"}"), queue("right", "{parent: "+parent+"}")
	e.apply(jobYAML("left", 2, "queue: "+left, ""))
	e.runs("left", 2)
	e.apply(jobYAML("right", 1, "queue: "+right, ""))
	e.waits("right", parent, "8")
	e.deleteJob("left")
	e.runs("right", 1)
	e.deleteJob("right")

	//   4. The first job of a FIFO queue lets nobody pass; in other queues it does.
	fifo, traverse := queue("fifo", "{dequeueStrategy: fifo}"), queue("traverse", "{dequeueStrategy: traverse}")
	for name, q := range map[string]string{"f": fifo, "t": traverse} {
		e.apply(jobYAML(name+"-large", 9, "queue: "+q, ""))
		e.waits(name+"-large", "cpu")
		e.apply(jobYAML(name+"-small", 1, "queue: "+q, ""))
	}
	e.runs("t-small", 1)
	e.until("f-small", says(batch.JobScheduled, "BehindFirst", fifo, "one before this one waits"))
	e.hasNoPods("f-small")
	e.deleteJob("f-large")
	e.runs("f-small", 1)
	for _, name := range []string{"t-large", "t-small", "f-small"} {
		e.deleteJob(name)
	}

	//   5. A capability may limit the number of pods.
	few := queue("few", "{capability: {pods: 3}}")
	e.apply(jobYAML("few", 5, "minAvailable: 1\n  queue: "+few, ""))
	e.runs("few", 3)
	e.until("few", says(batch.JobSurplusScheduled, "QueueOverCapability", few, "may hold 3 of pods"))
	e.deleteJob("few")

	//   6. Nothing is reclaimed from a queue with reclaimable: false.
	keeps := queue("keeps", "{reclaimable: false, deserved: {cpu: 4}}")
	claims := queue("claims", "{deserved: {cpu: 16}}")
	full("kept", keeps)
	e.apply(jobYAML("claimant", 1, "queue: "+claims, ""))
	e.waits("claimant", "nothing is evicted for it")
	if n := e.leaving(); len(n) != 0 {
		t.Errorf("leaving: %v", n)
	}
}

// TestGroupsAsTheirFieldsSay checks PodGroups and pods of other controllers: minTaskMember, queue,
// priorityClassName, both annotations that name a group, and the queue of a pod without group.
func TestGroupsAsTheirFieldsSay(t *testing.T) {
	e, _ := startEvicting(t)
	capped := e.ns + "-capped"
	e.apply("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: " + capped + "}\nspec: {capability: {cpu: 4}}")
	t.Cleanup(func() {
		_ = e.dyn.Resource(queues).Delete(context.Background(), capped, metav1.DeleteOptions{})
	})
	group := func(name, spec string) {
		t.Helper()
		e.apply("apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: " + name + "}\nspec: " + spec)
	}
	pod := func(name, annotations string) {
		t.Helper()
		e.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {%s}}
spec:
  schedulerName: volcano
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, name, annotations))
	}
	bound := func(names ...string) {
		t.Helper()
		for _, name := range names {
			e.eventually(name+" has a node", func() error {
				if e.pod(name).Spec.NodeName == "" {
					return errors.New("it has none")
				}
				return nil
			})
		}
	}
	unbound := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if node := e.pod(name).Spec.NodeName; node != "" {
				t.Errorf("pod %s is on %s", name, node)
			}
		}
	}
	//   1. The minimum of each task, with either annotation.
	group("tasks", "{minMember: 2, minTaskMember: {ps: 1, worker: 2}}")
	pod("t-ps", "scheduling.k8s.io/group-name: tasks, volcano.sh/task-spec: ps")
	pod("t-w0", "scheduling.volcano.sh/group-name: tasks, volcano.sh/task-spec: worker")
	e.says(podGroupResource, "tasks", "NotEnoughPodsOfTask", `"phase":"Inqueue"`)
	unbound("t-ps", "t-w0")
	pod("t-w1", "scheduling.k8s.io/group-name: tasks, volcano.sh/task-spec: worker")
	bound("t-ps", "t-w0", "t-w1")
	e.says(podGroupResource, "tasks", `"phase":"Running"`, `"type":"Scheduled"`, `"running":3`)
	//   2. The queue of a group, and of a pod without group.
	pod("single", "scheduling.volcano.sh/queue-name: "+capped)
	bound("single")
	group("queued", "{minMember: 1, queue: "+capped+"}")
	pod("q-0", "scheduling.k8s.io/group-name: queued")
	e.says(podGroupResource, "queued", capped, `"phase":"Pending"`)
	unbound("q-0")
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), "single", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	bound("q-0")
	//   3. The priority of a group: it is placed before an older one.
	e.apply(jobYAML("rest", 4, "", ""))
	e.runs("rest", 4)
	group("older", "{minMember: 3}")
	group("urgent", "{minMember: 3, priorityClassName: patient}")
	for i := range 3 {
		pod(fmt.Sprint("older-", i), "scheduling.k8s.io/group-name: older")
		pod(fmt.Sprint("urgent-", i), "scheduling.k8s.io/group-name: urgent, volcano.sh/preemptable: \"false\"")
	}
	e.says(podGroupResource, "older", "NotEnoughResources")
	e.says(podGroupResource, "urgent", "NotEnoughResources")
	e.deleteJob("rest")
	bound("urgent-0", "urgent-1", "urgent-2")
	unbound("older-0", "older-1", "older-2")
	if err := e.core.CoreV1().Pods(e.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}
