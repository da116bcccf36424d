package manager_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

func withPolicies(p ...batch.LifecyclePolicy) func(*batch.Job) {
	return func(j *batch.Job) { j.Spec.Policies = p }
}

// taskPolicies sets the policies of the first task.
func taskPolicies(p ...batch.LifecyclePolicy) func(*batch.Job) {
	return func(j *batch.Job) { j.Spec.Tasks[0].Policies = p }
}

func on(event bus.Event, action bus.Action) batch.LifecyclePolicy {
	return batch.LifecyclePolicy{Event: event, Action: action}
}

// forever reverts endsAfter in a task.
func forever(t *batch.TaskSpec) { t.Template.Annotations = nil }

func (e *env) uidOf(pod string) types.UID {
	e.Helper()
	p, err := e.core.CoreV1().Pods(e.ns).Get(e.Context(), pod, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return p.UID
}

// replaced waits until a pod of that name runs that has another UID.
func (e *env) replaced(pod string, uid types.UID) {
	e.Helper()
	e.eventually("a new "+pod, func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(e.Context(), pod, metav1.GetOptions{})
		if err == nil && (p.UID == uid || p.Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("the pod is %s, UID %s", p.Status.Phase, p.UID)
		}
		return err
	})
}

func (e *env) setPodStatus(pod string, s corev1.PodStatus) {
	e.Helper()
	data, err := json.Marshal(map[string]any{"status": s})
	if err == nil {
		_, err = e.core.CoreV1().Pods(e.ns).Patch(e.Context(), pod, types.MergePatchType, data, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) patchJob(name, patch string) {
	e.Helper()
	if _, err := e.dyn.Resource(jobs).Namespace(e.ns).Patch(e.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

func inPhaseBecause(p batch.JobPhase, reason bus.Event) func(*batch.Job) error {
	return func(j *batch.Job) error {
		if err := inPhase(p)(j); err != nil {
			return err
		}
		if j.Status.State.Reason != string(reason) || j.Status.State.Message == "" {
			return fmt.Errorf("the reason is not %s", reason)
		}
		return nil
	}
}

func TestAJobIsCompleteWhenTheTaskIsThatItsPolicyNames(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 1, "100m", endsAfter("1s"), withTask("ps", 2, forever), taskPolicies(on(bus.TaskCompletedEvent, bus.CompleteJobAction))))
	j := e.until("j", inPhaseBecause(batch.Completed, bus.TaskCompletedEvent))
	if j.Status.Succeeded != 1 || j.Status.RetryCount != 0 || j.Status.Condition(batch.JobSupported) != nil {
		t.Errorf("status %s", asJSON(j.Status))
	}
	for _, p := range e.podsOf("j") {
		if p.Labels[batch.TaskSpecKey] == "ps" {
			t.Errorf("pod %s still runs", p.Name)
		}
	}
}

func TestPoliciesActOnWhatHappenedWithoutTheManager(t *testing.T) {
	t.Parallel()
	e := startUnmanaged(t)
	stop := e.run()
	e.create(newJob("done", 1, "100m", withTask("ps", 1, nil), taskPolicies(on(bus.TaskCompletedEvent, bus.CompleteJobAction))))
	e.create(newJob("failed", 1, "100m", withTask("other", 1, nil), withPolicies(on(bus.PodFailedEvent, bus.RestartJobAction))))
	e.until("done", inPhase(batch.Running))
	e.until("failed", inPhase(batch.Running))
	other := e.uidOf("failed-other-0")
	stop()
	e.setPodStatus("done-main-0", corev1.PodStatus{Phase: corev1.PodSucceeded})
	e.setPodStatus("failed-main-0", corev1.PodStatus{Phase: corev1.PodFailed})
	e.run()
	e.until("done", inPhaseBecause(batch.Completed, bus.TaskCompletedEvent))
	e.replaced("failed-other-0", other)
	if j := e.until("failed", inPhase(batch.Running)); j.Status.RetryCount != 1 {
		t.Errorf("status %s", asJSON(j.Status))
	}
}

func TestAFailedPodRestartsTheJobUntilNoRunIsLeft(t *testing.T) {
	e := start(t)
	fails := annotated(batch.SimExitCodeAnnotation, "7")
	e.create(newJob("j", 1, "100m", endsAfter("500ms"), fails, withTask("other", 1, forever),
		withPolicies(on(bus.PodFailedEvent, bus.RestartJobAction)), func(j *batch.Job) { j.Spec.MaxRetry = ptr.To[int32](2) }))
	j := e.until("j", inPhase(batch.Failed))
	if j.Status.RetryCount != 2 || j.Status.Version != 2 || j.Status.State.Reason != "MaxRetryReached" {
		t.Errorf("status %s", asJSON(j.Status))
	}
	for _, p := range e.podsOf("j") {
		if p.Annotations[batch.JobRetryCountKey] != "1" || p.Annotations[batch.JobVersionKey] != "1" {
			t.Errorf("pod %s of the second run has annotations %v", p.Name, p.Annotations)
		}
	}
}

func TestAnExitCodeRestartsThePodAlone(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", taskPolicies(
		batch.LifecyclePolicy{ExitCode: ptr.To[int32](137), Action: bus.RestartPodAction},
		on(bus.PodFailedEvent, bus.TerminateJobAction))))
	e.until("j", inPhase(batch.Running))
	first, second := e.uidOf("j-main-0"), e.uidOf("j-main-1")
	ended := func(code int32) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
		}}}
	}
	e.setPodStatus("j-main-1", ended(137))
	e.replaced("j-main-1", second)
	if e.uidOf("j-main-0") != first {
		t.Error("the other pod was restarted, too")
	}
	j := e.until("j", func(j *batch.Job) error {
		if j.Status.RetryCount != 1 || j.Status.State.Phase != batch.Running {
			return fmt.Errorf("no retry counted")
		}
		return nil
	})
	if j.Status.Version != 0 {
		t.Errorf("a pod's restart is no new run of the job: %s", asJSON(j.Status))
	}
	e.setPodStatus("j-main-0", ended(1))
	e.until("j", inPhaseBecause(batch.Terminated, bus.PodFailedEvent))
}

func TestAPartitionIsRestarted(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 4, "100m", taskPolicies(on(bus.PodFailedEvent, bus.RestartPartitionAction)), func(j *batch.Job) {
		j.Spec.Tasks[0].PartitionPolicy = &batch.PartitionPolicySpec{TotalPartitions: 2, PartitionSize: 2}
	}))
	e.until("j", inPhase(batch.Running))
	uids := map[string]types.UID{}
	for _, p := range e.podsOf("j") {
		uids[p.Name] = p.UID
		index, err := strconv.Atoi(p.Labels[batch.TaskIndexKey])
		if err != nil || p.Labels[batch.PartitionIDKey] != strconv.Itoa(index/2) {
			t.Errorf("pod %s is of partition %q", p.Name, p.Labels[batch.PartitionIDKey])
		}
	}
	e.setPodStatus("j-main-3", corev1.PodStatus{Phase: corev1.PodFailed})
	e.replaced("j-main-3", uids["j-main-3"])
	e.replaced("j-main-2", uids["j-main-2"])
	for _, pod := range []string{"j-main-0", "j-main-1"} {
		if e.uidOf(pod) != uids[pod] {
			t.Errorf("pod %s of the other partition was restarted", pod)
		}
	}
}

func TestAnEvictionRestartsTheTask(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", withTask("other", 1, nil), taskPolicies(on(bus.PodEvictedEvent, bus.RestartTaskAction))))
	e.until("j", inPhase(batch.Running))
	uids := map[string]types.UID{}
	for _, p := range e.podsOf("j") {
		uids[p.Name] = p.UID
	}
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), "j-main-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.replaced("j-main-0", uids["j-main-0"])
	e.replaced("j-main-1", uids["j-main-1"])
	if e.uidOf("j-other-0") != uids["j-other-0"] {
		t.Error("the other task was restarted, too")
	}
	e.until("j", func(j *batch.Job) error {
		if j.Status.RetryCount != 1 {
			return fmt.Errorf("retries: %d", j.Status.RetryCount)
		}
		return nil
	})
}

func TestAnEvictionRestartsTheJob(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", withTask("other", 1, nil), withPolicies(on(bus.PodEvictedEvent, bus.RestartJobAction))))
	e.until("j", inPhase(batch.Running))
	other := e.uidOf("j-other-0")
	// A kubelet that is short of memory fails the pod and marks it as disrupted.
	e.setPodStatus("j-main-0", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Conditions: []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet"},
	}})
	e.replaced("j-other-0", other)
	e.until("j", func(j *batch.Job) error {
		if j.Status.RetryCount != 1 || j.Status.Version != 1 {
			return fmt.Errorf("no restart counted")
		}
		return inPhase(batch.Running)(j)
	})
}

func TestAPodThatItsNodeRefusesIsMadeAgainWithoutAPolicy(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m"))
	e.until("j", inPhase(batch.Running))
	uid := e.uidOf("j-main-0")
	e.setPodStatus("j-main-0", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"})
	e.replaced("j-main-0", uid)
}

func TestRestartsOfContainersFailTheTask(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", withPolicies(on(bus.TaskFailedEvent, bus.AbortJobAction)), func(j *batch.Job) {
		j.Spec.Tasks[0].MaxRetry = ptr.To[int32](3)
	}))
	e.until("j", inPhase(batch.Running))
	restarted := func(n int32) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: n}}}
	}
	e.setPodStatus("j-main-0", restarted(2))
	e.setPodStatus("j-main-1", restarted(1))
	e.until("j", inPhaseBecause(batch.Aborted, bus.TaskFailedEvent))
}

func TestAJobIsAbortedThatWaitsForTooLong(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 3, "40", withPolicies(batch.LifecyclePolicy{
		Event: bus.PodPendingEvent, Action: bus.AbortJobAction, Timeout: &metav1.Duration{Duration: 2 * time.Second},
	})))
	j := e.until("j", inPhaseBecause(batch.Aborted, bus.PodPendingEvent))
	if waited := j.Status.State.LastTransitionTime.Sub(j.CreationTimestamp.Time); waited < 2*time.Second {
		t.Errorf("it was aborted after %s", waited)
	}
}

func TestAPolicyWithATimeoutLetsWhatIsCuredBe(t *testing.T) {
	e := start(t)
	late := func(event bus.Event) batch.LifecyclePolicy {
		return batch.LifecyclePolicy{Event: event, Action: bus.TerminateJobAction, Timeout: &metav1.Duration{Duration: 3 * time.Second}}
	}
	e.create(newJob("cured", 1, "100m", withPolicies(late(bus.PodEvictedEvent))))
	e.create(newJob("failed", 2, "100m", withPolicies(late(bus.PodFailedEvent))))
	e.until("cured", inPhase(batch.Running))
	e.until("failed", inPhase(batch.Running))
	uid := e.uidOf("cured-main-0")
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), "cured-main-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	e.setPodStatus("failed-main-0", corev1.PodStatus{Phase: corev1.PodFailed})
	e.replaced("cured-main-0", uid)
	e.until("failed", inPhaseBecause(batch.Terminated, bus.PodFailedEvent))
	if waited := time.Since(began); waited < 2*time.Second {
		t.Errorf("it was terminated after %s", waited)
	}
	if j := e.job("cured"); j.Status.State.Phase != batch.Running {
		t.Errorf("the cured job is %s", j.Status.State.Phase)
	}
}

func TestATaskWaitsForThoseItDependsOn(t *testing.T) {
	e := start(t)
	dependsOn := func(iteration batch.Iteration, names ...string) func(*batch.TaskSpec) {
		return func(t *batch.TaskSpec) { t.DependsOn = &batch.DependsOn{Name: names, Iteration: iteration} }
	}
	// The gang is complete only with the waiting task: it is placed in two parts.
	e.create(newJob("j", 3, "100m", withTask("master", 1, dependsOn("", "main"))))
	e.create(newJob("any", 1, "100m", withTask("never", 1, dependsOn("", "stuck")), withTask("stuck", 1, func(t *batch.TaskSpec) {
		t.Template.Spec.NodeSelector = map[string]string{"no": "such"}
	}), withTask("eager", 1, dependsOn(batch.IterationAny, "stuck", "main")), minAvailable(1)))
	e.until("j", inPhase(batch.Running))
	created := map[string]time.Time{}
	for _, p := range e.podsOf("j") {
		created[p.Name] = p.CreationTimestamp.Time
		if p.Labels[batch.TaskSpecKey] == "main" {
			continue
		}
		for _, q := range e.podsOf("j") {
			if q.Labels[batch.TaskSpecKey] == "main" && (q.Status.StartTime == nil || p.CreationTimestamp.Time.Before(q.Status.StartTime.Time)) {
				t.Errorf("pod %s came before %s had begun", p.Name, q.Name)
			}
		}
	}
	if len(created) != 4 {
		t.Errorf("pods: %v", created)
	}
	e.eventually("the task that waits for any", func() error {
		for _, p := range e.podsOf("any") {
			if p.Labels[batch.TaskSpecKey] == "eager" && p.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("it has no pod that runs")
	})
	for _, p := range e.podsOf("any") {
		if p.Labels[batch.TaskSpecKey] == "never" {
			t.Errorf("pod %s did not wait", p.Name)
		}
	}
}

func TestAGangInPartsKeepsItsFirstPart(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", withTask("large", 1, func(t *batch.TaskSpec) {
		t.DependsOn = &batch.DependsOn{Name: []string{"main"}}
		t.Template.Spec.NodeSelector = map[string]string{"no": "such"}
	})))
	e.until("j", says(batch.JobScheduled, "Unschedulable"))
	uids := map[types.UID]bool{}
	for _, p := range e.podsOf("j") {
		uids[p.UID] = true
	}
	if len(uids) != 2 {
		t.Fatalf("%d pods", len(uids))
	}
	j := e.job("j")
	if j.Status.State.Phase != batch.Pending || j.Status.MinAvailable != 3 {
		t.Errorf("status %s", asJSON(j.Status))
	}
}

func TestAClaimIsMadeForAJob(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.create(newJob("j", 2, "100m", func(j *batch.Job) {
		j.Spec.Volumes = []batch.VolumeSpec{{MountPath: "/data", VolumeClaim: &corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			StorageClassName: ptr.To(""),
			VolumeName:       e.ns,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}}
	}))
	_, err := e.core.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: e.ns},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j := e.until("j", inPhase(batch.Running))
	claims, err := e.core.CoreV1().PersistentVolumeClaims(e.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 {
		t.Fatalf("claims: %v, %v", claims.Items, err)
	}
	claim := claims.Items[0]
	if owner := metav1.GetControllerOf(&claim); owner == nil || owner.UID != j.UID || j.Status.ControlledResources["volume-pvc-"+claim.Name] != claim.Name {
		t.Errorf("the claim %s is owned by %v; status %s", claim.Name, owner, asJSON(j.Status))
	}
	for _, p := range e.podsOf("j") {
		if !slices.ContainsFunc(p.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data" }) {
			t.Errorf("pod %s mounts %v", p.Name, p.Spec.Containers[0].VolumeMounts)
		}
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		}) {
			t.Errorf("pod %s does not use the claim", p.Name)
		}
	}
}

func TestThePluginsOfFrameworks(t *testing.T) {
	e := start(t)
	roles := func(first, second string, replicas int32, plugin string, args ...string) []func(*batch.Job) {
		args = append([]string{}, args...)
		return []func(*batch.Job){withTask(second, replicas, nil), withPlugins(map[string]batch.PluginArguments{plugin: args}),
			func(j *batch.Job) { j.Spec.Tasks[0].Name = first }}
	}
	e.create(newJob("pt", 1, "10m", roles("master", "worker", 2, "pytorch", "--port=29500", "--wait-master-enabled")...))
	e.create(newJob("tf", 1, "10m", roles("ps", "worker", 2, "tensorflow")...))
	e.create(newJob("mpi", 1, "10m", roles("master", "worker", 2, "mpi")...))
	e.create(newJob("hc", 1, "10m", roles("master", "worker", 2, "hcclrank")...))
	e.create(newJob("ray", 1, "10m", append(roles("head", "worker", 1, "ray"), func(j *batch.Job) {
		j.Spec.Tasks[0].Template.Spec.Containers[0].Name, j.Spec.Tasks[1].Template.Spec.Containers[0].Name = "head", "worker"
	})...))
	// Without a master there is nothing to configure: such jobs run.
	e.create(newJob("alone", 1, "10m", withPlugins(map[string]batch.PluginArguments{"pytorch": {}})))
	for _, job := range []string{"pt", "tf", "mpi", "hc", "ray", "alone"} {
		e.until(job, inPhase(batch.Running))
	}
	envs := map[string]map[string]string{}
	pods := map[string]corev1.Pod{}
	for _, p := range e.pods() {
		envs[p.Name], pods[p.Name] = envOf(&p.Spec.Containers[0]), p
	}
	for pod, want := range map[string]map[string]string{
		"pt-master-0": {"MASTER_ADDR": "pt-master-0.pt", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "RANK": "0"},
		"pt-worker-1": {"MASTER_ADDR": "pt-master-0.pt", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "RANK": "2"},
		"tf-ps-0": {"TF_CONFIG": `{"cluster":{"ps":["tf-ps-0.tf:2222"],"worker":["tf-worker-0.tf:2222","tf-worker-1.tf:2222"]},` +
			`"task":{"type":"ps","index":0}}`},
		"tf-worker-1": {"TF_CONFIG": `{"cluster":{"ps":["tf-ps-0.tf:2222"],"worker":["tf-worker-0.tf:2222","tf-worker-1.tf:2222"]},` +
			`"task":{"type":"worker","index":1}}`},
		"mpi-master-0": {"MPI_HOST": "mpi-worker-0.mpi,mpi-worker-1.mpi"},
		"mpi-worker-0": {"MPI_HOST": ""},
		"alone-main-0": {"RANK": "", "MASTER_ADDR": ""},
	} {
		for name, value := range want {
			if envs[pod][name] != value {
				t.Errorf("pod %s: %s is %q, not %q", pod, name, envs[pod][name], value)
			}
		}
	}
	for pod, port := range map[string]int32{"pt-master-0": 29500, "pt-worker-0": 29500, "mpi-master-0": 22, "mpi-worker-1": 22, "ray-head-0": 8265} {
		if !slices.ContainsFunc(pods[pod].Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == port }) {
			t.Errorf("pod %s has ports %v", pod, pods[pod].Spec.Containers[0].Ports)
		}
	}
	if n := len(pods["pt-worker-0"].Spec.InitContainers); n != 1 || len(pods["pt-master-0"].Spec.InitContainers) != 0 {
		t.Errorf("a worker has %d init containers", n)
	}
	for pod, rank := range map[string]string{"hc-master-0": "0", "hc-worker-0": "1", "hc-worker-1": "2"} {
		if got := pods[pod].Annotations["hccl/rankIndex"]; got != rank {
			t.Errorf("pod %s has rank %q", pod, got)
		}
	}
	if c := pods["ray-worker-0"].Spec.Containers[0].Command; len(c) != 3 || c[2] != "ray start --block --address=ray-head-0.ray:6379" {
		t.Errorf("a Ray worker runs %q", c)
	}
	if s, err := e.core.CoreV1().Services(e.ns).Get(t.Context(), "ray-head-svc", metav1.GetOptions{}); err != nil || len(s.Spec.Ports) != 3 {
		t.Errorf("the head's service: %v, %v", s, err)
	}
	// The plugins bring the plugins that they depend on.
	if r := e.job("mpi").Status.ControlledResources; r["plugin-mpi"] != "mpi" || r["plugin-svc"] != "svc" || r["plugin-ssh"] != "ssh" {
		t.Errorf("controlled resources %v", r)
	}
}

func TestTheSSHPlugin(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 1, "10m", withTask("worker", 2, nil), withPlugins(map[string]batch.PluginArguments{"ssh": {}, "svc": {}}), minAvailable(1)))
	e.create(newJob("own", 1, "10m", withPlugins(map[string]batch.PluginArguments{
		"ssh": {"--ssh-key-file-path=/home/user/.ssh", "--ssh-private-key=private", "--ssh-public-key=public", "--ssh-port=2222"},
	})))
	e.until("j", inPhase(batch.Running))
	secret := func(name string) *corev1.Secret {
		t.Helper()
		s, err := e.core.CoreV1().Secrets(e.ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := secret("j-ssh")
	private, public := string(s.Data["id_rsa"]), string(s.Data["id_rsa.pub"])
	if owner := metav1.GetControllerOf(s); owner == nil || owner.UID != e.job("j").UID {
		t.Errorf("the Secret is owned by %v", owner)
	}
	if private == "" || public == "" || string(s.Data["authorized_keys"]) != public {
		t.Errorf("the Secret has %d keys", len(s.Data))
	}
	for _, p := range e.podsOf("j") {
		c := p.Spec.Containers[0]
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/root/.ssh" && m.SubPath == ".ssh" }) {
			t.Errorf("pod %s mounts %v", p.Name, c.VolumeMounts)
		}
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == "j-ssh" && ptr.Deref(v.Secret.DefaultMode, 0) == 0o600
		}) {
			t.Errorf("pod %s has no volume of the Secret", p.Name)
		}
	}
	hosts := func(n int) func() error {
		return func() error {
			config := string(secret("j-ssh").Data["config"])
			want := "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nHost j-main-0\n  HostName j-main-0.j\n"
			for i := range n {
				want += "Host j-worker-" + strconv.Itoa(i) + "\n  HostName j-worker-" + strconv.Itoa(i) + ".j\n"
			}
			if config != want {
				return fmt.Errorf("the configuration is %q", config)
			}
			return nil
		}
	}
	if err := hosts(2)(); err != nil {
		t.Error(err)
	}
	// A job that is scaled up keeps its keys and gets more names.
	e.patchJob("j", `[{"op": "replace", "path": "/spec/tasks/1/replicas", "value": 4}]`)
	e.eventually("the names of new pods", hosts(4))
	if string(secret("j-ssh").Data["id_rsa"]) != private {
		t.Error("the keys have changed")
	}
	e.until("own", inPhase(batch.Running))
	own := secret("own-ssh")
	if string(own.Data["id_rsa"]) != "private" || string(own.Data["authorized_keys"]) != "public" {
		t.Errorf("the keys given are not used: %s", own.Data)
	}
	if m := e.podsOf("own")[0].Spec.Containers[0].VolumeMounts; !slices.ContainsFunc(m, func(m corev1.VolumeMount) bool { return m.MountPath == "/home/user/.ssh" }) {
		t.Errorf("mounts %v", m)
	}
}
