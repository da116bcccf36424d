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
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// says checks that a job has that condition with status False and that reason, and that the message
// contains all parts.
func says(t batch.JobConditionType, reason string, parts ...string) func(*batch.Job) error {
	return func(j *batch.Job) error {
		c := j.Status.Condition(t)
		if c == nil || c.Status != "False" || c.Reason != reason {
			return fmt.Errorf("it does not say that it is not %s because of %s", t, reason)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("the message lacks %q: %s", part, c.Message)
			}
		}
		return nil
	}
}

func inQueue(name string) func(*batch.Job) { return func(j *batch.Job) { j.Spec.Queue = name } }

func withPlugins(plugins map[string]batch.PluginArguments) func(*batch.Job) {
	return func(j *batch.Job) { j.Spec.Plugins = plugins }
}

// withTask adds a task like the first, with other numbers.
func withTask(name string, replicas int32, change func(*batch.TaskSpec)) func(*batch.Job) {
	return func(j *batch.Job) {
		t := *j.Spec.Tasks[0].DeepCopy()
		t.Name, t.Replicas = name, replicas
		if change != nil {
			change(&t)
		}
		j.Spec.Tasks = append(j.Spec.Tasks, t)
	}
}

func (e *env) delete(job string) {
	e.Helper()
	if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(e.Context(), job, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
}

func (e *env) hasNoPods(job string) {
	e.Helper()
	if n := len(e.podsOf(job)); n != 0 {
		e.Errorf("job %s has %d pods", job, n)
	}
}

// creations returns the resources that the manager created in the namespace, in the order of the
// audit log.
func (e *env) creations() []string {
	e.Helper()
	var out []string
	for _, call := range localtest.ManagerCalls(e, e.c) {
		if call.Verb == "create" && call.Namespace == e.ns {
			out = append(out, call.Resource)
		}
	}
	return out
}

// envOf returns the variables that have a value, and for the others the ConfigMap keys.
func envOf(c *corev1.Container) map[string]string {
	out := map[string]string{}
	for _, v := range c.Env {
		out[v.Name] = v.Value
		if v.ValueFrom != nil && v.ValueFrom.ConfigMapKeyRef != nil {
			out[v.Name] = v.ValueFrom.ConfigMapKeyRef.Name + "/" + v.ValueFrom.ConfigMapKeyRef.Key
		}
	}
	return out
}

func TestThePluginsEnvAndSvc(t *testing.T) {
	e := start(t)
	e.create(newJob("tf", 2, "100m", endsAfter("1s"), withTask("ps-a", 1, nil),
		withPlugins(map[string]batch.PluginArguments{"env": {}, "svc": {}})))
	e.until("tf", inPhase(batch.Running))
	for _, p := range e.podsOf("tf") {
		if p.Spec.Hostname != p.Name || p.Spec.Subdomain != "tf" {
			t.Errorf("pod %s: hostname %q, subdomain %q", p.Name, p.Spec.Hostname, p.Spec.Subdomain)
		}
		index := p.Labels[batch.TaskIndexKey]
		want := map[string]string{
			"VC_TASK_INDEX": index, "VK_TASK_INDEX": index,
			"VC_MAIN_HOSTS": "tf-svc/VC_MAIN_HOSTS", "VC_MAIN_NUM": "tf-svc/VC_MAIN_NUM",
			"VC_PS_A_HOSTS": "tf-svc/VC_PS_A_HOSTS", "VC_PS_A_NUM": "tf-svc/VC_PS_A_NUM",
		}
		c := &p.Spec.Containers[0]
		if got := envOf(c); !maps.Equal(got, want) {
			t.Errorf("pod %s: environment %v, not %v", p.Name, got, want)
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/volcano" && m.Name == "tf-svc" }) {
			t.Errorf("pod %s mounts %v", p.Name, c.VolumeMounts)
		}
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == "tf-svc" }) {
			t.Errorf("pod %s has no volume of the ConfigMap", p.Name)
		}
	}
	config, err := e.core.CoreV1().ConfigMaps(e.ns).Get(t.Context(), "tf-svc", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"main.host": "tf-main-0.tf\ntf-main-1.tf", "VC_MAIN_HOSTS": "tf-main-0.tf,tf-main-1.tf", "VC_MAIN_NUM": "2",
		"ps-a.host": "tf-ps-a-0.tf", "VC_PS_A_HOSTS": "tf-ps-a-0.tf", "VC_PS_A_NUM": "1",
	}
	if !maps.Equal(config.Data, want) {
		t.Errorf("the ConfigMap has %v", config.Data)
	}
	service, err := e.core.CoreV1().Services(e.ns).Get(t.Context(), "tf", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone || service.Spec.Selector[batch.JobNameKey] != "tf" {
		t.Errorf("the Service is %s", asJSON(service.Spec))
	}
	policy, err := e.core.NetworkingV1().NetworkPolicies(e.ns).Get(t.Context(), "tf", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uid := e.job("tf").UID
	for _, o := range []metav1.Object{config, service, policy} {
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != uid {
			t.Errorf("%T is owned by %v", o, owner)
		}
	}

	e.until("tf", inPhase(batch.Completed))
	writes := managerWrites(t, e.c, e.ns)
	for what, n := range map[string]int{"configmaps create": 1, "services create": 1, "networkpolicies create": 1, "pods create": 3} {
		if writes[what] != n {
			t.Errorf("%d × %s", writes[what], what)
		}
	}
	if n := sum(writes); n > 8 { // and at most two of status
		t.Errorf("writes: %v", writes)
	}
	order := e.creations()
	for _, o := range []string{"configmaps", "services", "networkpolicies"} {
		if slices.Index(order, o) > slices.Index(order, "pods") {
			t.Errorf("pods came before the %s: %v", o, order)
		}
	}
}

func TestTheSvcPluginsArguments(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "100m", withPlugins(map[string]batch.PluginArguments{
		"svc": {"--disable-network-policy=true", "--publish-not-ready-addresses"},
	})))
	e.until("j", inPhase(batch.Running))
	if _, err := e.core.NetworkingV1().NetworkPolicies(e.ns).Get(t.Context(), "j", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a NetworkPolicy that was not wanted: %v", err)
	}
	service, err := e.core.CoreV1().Services(e.ns).Get(t.Context(), "j", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !service.Spec.PublishNotReadyAddresses {
		t.Error("the addresses of pods that are not ready are not published")
	}
	e.create(newJob("bad", 1, "100m", withPlugins(map[string]batch.PluginArguments{"svc": {"--disable-network-policy=perhaps"}})))
	e.until("bad", says(batch.JobValid, batch.ReasonInvalidTemplate, "spec.plugins.svc", "perhaps"))
	e.hasNoPods("bad")
	// Unknown arguments of plugins are ignored, as by Volcano; the others take effect.
	e.create(newJob("unknown", 1, "100m", withPlugins(map[string]batch.PluginArguments{
		"svc": {"--no-such-argument=1", "--disable-network-policy=true"}, "env": {"index"},
	})))
	e.until("unknown", inPhase(batch.Running))
	e.until("unknown", says(batch.JobSupported, batch.ReasonUnknownArgument, "spec.plugins.svc", "no-such-argument", "spec.plugins.env"))
	if _, err := e.core.NetworkingV1().NetworkPolicies(e.ns).Get(t.Context(), "unknown", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a NetworkPolicy that was not wanted: %v", err)
	}
}

func TestAJobWaitsForItsQueueToExist(t *testing.T) {
	e := start(t)
	name := e.ns + "-later"
	e.create(newJob("j", 3, "100m", inQueue(name)))
	e.until("j", says(batch.JobScheduled, "QueueNotFound", "spec.queue", name))
	e.hasNoPods("j")
	e.queue(name, func(*scheduling.QueueSpec) {})
	e.until("j", inPhase(batch.Running))
}

func (e *env) untilQueue(name string, state scheduling.QueueState) {
	e.Helper()
	e.eventually("queue "+name, func() error {
		u, err := e.dyn.Resource(queues).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now, _, _ := unstructured.NestedString(u.Object, "status", "state"); now != string(state) {
			return fmt.Errorf("it is %q, not %q", now, state)
		}
		return nil
	})
}

func TestAClosedQueueTakesNothingNew(t *testing.T) {
	e := start(t)
	name := e.ns + "-door"
	e.queue(name, func(*scheduling.QueueSpec) {})
	e.untilQueue(name, scheduling.QueueOpen)
	e.create(newJob("before", 2, "100m", inQueue(name)))
	e.until("before", inPhase(batch.Running))
	e.command(bus.CloseQueueAction, "Queue", name)
	e.untilQueue(name, scheduling.QueueClosing)
	e.create(newJob("after", 2, "100m", inQueue(name)))
	e.until("after", says(batch.JobScheduled, "QueueClosed", "spec.queue", name))
	e.hasNoPods("after")
	if j := e.job("before"); j.Status.State.Phase != batch.Running {
		t.Errorf("what ran is %s", j.Status.State.Phase)
	}
	e.command(bus.OpenQueueAction, "Queue", name)
	e.untilQueue(name, scheduling.QueueOpen)
	e.until("after", inPhase(batch.Running))

	empty := e.ns + "-empty"
	e.queue(empty, func(*scheduling.QueueSpec) {})
	e.untilQueue(empty, scheduling.QueueOpen)
	e.command(bus.CloseQueueAction, "Queue", empty)
	e.untilQueue(empty, scheduling.QueueClosed)
}

func TestAQueueIsClosedAndOpenedWithItsParent(t *testing.T) {
	e := start(t)
	parent, child, shut := e.ns+"-parent", e.ns+"-child", e.ns+"-shut"
	e.queue(parent, func(*scheduling.QueueSpec) {})
	e.queue(child, func(s *scheduling.QueueSpec) { s.Parent = parent })
	e.queue(shut, func(s *scheduling.QueueSpec) { s.Parent = parent })
	for _, name := range []string{parent, child, shut} {
		e.untilQueue(name, scheduling.QueueOpen)
	}
	e.create(newJob("before", 1, "100m", inQueue(child)))
	e.until("before", inPhase(batch.Running))
	e.command(bus.CloseQueueAction, "Queue", shut)
	e.untilQueue(shut, scheduling.QueueClosed)

	e.command(bus.CloseQueueAction, "Queue", parent)
	e.untilQueue(child, scheduling.QueueClosing)
	e.untilQueue(parent, scheduling.QueueClosing) // because its child still holds resources
	e.command(bus.OpenQueueAction, "Queue", child)
	e.create(newJob("after", 1, "100m", inQueue(child)))
	e.until("after", says(batch.JobScheduled, "QueueClosed", "spec.queue", child))
	e.delete("before")
	e.eventually("the annotation", func() error {
		q, err := e.dyn.Resource(queues).Get(t.Context(), child, metav1.GetOptions{})
		if err == nil && q.GetAnnotations()[scheduling.ClosedByParentAnnotation] != "true" {
			err = fmt.Errorf("annotations %v", q.GetAnnotations())
		}
		return err
	})

	e.command(bus.OpenQueueAction, "Queue", parent)
	e.untilQueue(parent, scheduling.QueueOpen)
	e.untilQueue(child, scheduling.QueueOpen)
	e.until("after", inPhase(batch.Running))
	e.untilQueue(shut, scheduling.QueueClosed) // it was closed by itself
}

func TestAQueueHoldsNoMoreThanItsCapability(t *testing.T) {
	e := start(t)
	name := e.ns + "-small"
	e.queue(name, func(s *scheduling.QueueSpec) {
		s.Capability = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	})
	e.create(newJob("a", 3, "1", inQueue(name)))
	e.until("a", inPhase(batch.Running))
	e.create(newJob("b", 3, "1", inQueue(name)))
	e.until("b", says(batch.JobScheduled, "QueueOverCapability", "cpu", name, "4"))
	e.hasNoPods("b")
	e.delete("a")
	e.until("b", inPhase(batch.Running))
	e.delete("b")
	e.create(newJob("elastic", 10, "1", inQueue(name), minAvailable(1)))
	e.until("elastic", func(j *batch.Job) error {
		if j.Status.Running != 4 {
			return errors.New("not yet at 4")
		}
		return nil
	})
	if n := len(e.podsOf("elastic")); n != 4 {
		t.Errorf("it has %d pods", n)
	}
}

func TestTheHigherPriorityStartsFirst(t *testing.T) {
	e := start(t)
	for name, value := range map[string]int32{"low": 10, "high": 1000, "top": 2000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: e.ns + "-" + name}, Value: value}
		if _, err := e.core.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.core.SchedulingV1().PriorityClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	// Nobody is evicted for the two that wait.
	e.create(newJob("all", 32, "1", func(j *batch.Job) { j.Spec.PriorityClassName = e.ns + "-top" }))
	e.until("all", inPhase(batch.Running))
	for _, name := range []string{"low", "high"} {
		e.create(newJob(name, 20, "1", func(j *batch.Job) { j.Spec.PriorityClassName = e.ns + "-" + name }))
		e.until(name, says(batch.JobScheduled, "NotEnoughResources", "cpu"))
	}
	e.delete("all")
	e.until("high", inPhase(batch.Running))
	e.hasNoPods("low")
	for _, p := range e.podsOf("high") {
		if ptr.Deref(p.Spec.Priority, 0) != 1000 {
			t.Errorf("pod %s has priority %v", p.Name, p.Spec.Priority)
		}
	}
	e.delete("high")
	e.until("low", inPhase(batch.Running))
}

func TestWhatIsNotActedOnIsNamed(t *testing.T) {
	e := start(t)
	cases := []struct {
		name, field string
		starts      bool
		change      func(*batch.Job)
	}{
		{"numa", "spec.tasks[].topologyPolicy", true, func(j *batch.Job) { // not of a Guaranteed pod
			j.Spec.Tasks[0].TopologyPolicy = batch.NumaRestricted
			whole := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			j.Spec.Tasks[0].Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: whole}
		}},
	}
	for _, c := range cases {
		e.create(newJob(c.name, 1, "100m", c.change))
	}
	for _, c := range cases {
		e.until(c.name, says(batch.JobSupported, batch.ReasonNotImplemented, c.field))
		if c.starts {
			e.until(c.name, inPhase(batch.Running))
			continue
		}
		e.until(c.name, says(batch.JobScheduled, batch.ReasonNotImplemented, c.field))
		e.hasNoPods(c.name)
	}
	e.create(newJob("plain", 1, "100m"))
	if j := e.until("plain", inPhase(batch.Running)); j.Status.Condition(batch.JobSupported) != nil {
		t.Errorf("a plain job has a condition: %s", asJSON(j.Status))
	}
}

// TestWhatQueuesAndPodGroupsAskForInVainIsNamed checks the condition Supported of queues and
// PodGroups: it names each field that Lockstep does not act on, and goes with the last of them.
func TestWhatQueuesAndPodGroupsAskForInVainIsNamed(t *testing.T) {
	e := start(t)
	for _, c := range []struct {
		resource     schema.GroupVersionResource
		yaml, fields string
	}{
		{queues, `
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
spec:
  deserved: {cpu: 2}
  guarantee: {resource: {cpu: 1}}
  reclaimable: false
  affinity: {nodeGroupAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [a]}}
  capability: {deviceclass/gpu.example.com: 8}
  extendClusters: [{name: far}]
`, "spec.extendClusters, spec.capability of device classes (devices of resource claims are not counted)"},
		{podGroupResource, `
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {annotations: {volcano.sh/sla-waiting-time: soon, volcano.sh/revocable-zone: a b}}
spec:
  minMember: 1
`, "metadata.annotations[volcano.sh/sla-waiting-time] (it is no positive duration), " +
			"metadata.annotations[volcano.sh/revocable-zone] (want * or names of zones)"},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(c.yaml), &u.Object); err != nil {
			t.Fatal(err)
		}
		client := dynamic.ResourceInterface(e.dyn.Resource(c.resource))
		if c.resource == podGroupResource {
			client = e.dyn.Resource(c.resource).Namespace(e.ns)
		}
		name := e.ns + "-vain"
		u.SetName(name)
		if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		supported := func(want string) {
			e.eventually("the condition of the "+u.GetKind(), func() error {
				now, err := client.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
				got := ""
				for _, c := range conditions {
					if c := c.(map[string]any); c["type"] == "Supported" {
						got = fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
					}
				}
				if got != want {
					return fmt.Errorf("%q, want %q", got, want)
				}
				return nil
			})
		}
		supported("False NotImplemented not acted on: " + c.fields)
		plain := []byte(`{"metadata":{"annotations":null},"spec":{"deserved":null,"guarantee":null,"reclaimable":null,"affinity":null,` +
			`"capability":null,"extendClusters":null}}`)
		if _, err := client.Patch(t.Context(), name, types.MergePatchType, plain, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		supported("")
	}
}

func TestAJobIsSuspendedAndResumed(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 20, "1"))
	e.until("j", inPhase(batch.Running))
	e.command(bus.AbortJobAction, "Job", "j")
	e.until("j", inPhase(batch.Aborted))
	e.hasNoPods("j")
	// While the job is suspended others take its resources; a resumed gang is a gang again.
	e.create(newJob("other", 20, "1"))
	e.until("other", inPhase(batch.Running))
	e.command(bus.ResumeJobAction, "Job", "j")
	e.until("j", says(batch.JobScheduled, "NotEnoughResources", "cpu"))
	e.hasNoPods("j")
	e.delete("other")
	j := e.until("j", func(j *batch.Job) error {
		if j.Status.Running != 20 {
			return errors.New("not yet all")
		}
		return inPhase(batch.Running)(j)
	})
	if j.Status.RetryCount != 0 {
		t.Errorf("being resumed used up %d retries", j.Status.RetryCount)
	}
	list, err := e.dyn.Resource(commands).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d commands remain: %v", len(list.Items), err)
	}
}

func TestAJobIsTerminated(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 3, "100m"))
	e.until("j", inPhase(batch.Running))
	e.command(bus.TerminateJobAction, "Job", "j")
	e.until("j", inPhase(batch.Terminated))
	e.hasNoPods("j")
	e.create(newJob("waiting", 40, "1"))
	e.until("waiting", says(batch.JobScheduled, "NotEnoughResources"))
	e.command(bus.TerminateJobAction, "Job", "waiting")
	e.until("waiting", inPhase(batch.Terminated))
	// The job is over: nothing restarts it.
	e.command(bus.ResumeJobAction, "Job", "j")
	e.eventually("the command is refused with an event", func() error {
		if events := e.eventsOf("j"); !slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "CommandRefused" }) {
			return fmt.Errorf("%d events", len(events))
		}
		return nil
	})
	e.hasNoPods("j")
}

// eventsOf returns the events about a job.
func (e *env) eventsOf(job string) []corev1.Event {
	e.Helper()
	list, err := e.core.CoreV1().Events(e.ns).List(e.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Job,involvedObject.name=" + job})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

func TestAGangThatItsQuotaRefusesHoldsNothing(t *testing.T) {
	e := start(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")},
	}}
	if _, err := e.core.CoreV1().ResourceQuotas(e.ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the quota is in force", func() error {
		quota, err := e.core.CoreV1().ResourceQuotas(e.ns).Get(t.Context(), "few", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	e.create(newJob("gang", 4, "100m"))
	e.until("gang", says(batch.JobScheduled, "QuotaExceeded", "exceeded quota: few"))
	e.eventually("the pods that were created are gone", func() error {
		if n := len(e.podsOf("gang")); n != 0 {
			return fmt.Errorf("%d remain", n)
		}
		return nil
	})
	// The gang fits in every other way: only the quota prevents it.
	raise := []byte(`{"spec":{"hard":{"pods":"4"}}}`)
	if _, err := e.core.CoreV1().ResourceQuotas(e.ns).Patch(t.Context(), "few", types.MergePatchType, raise, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	j := e.until("gang", inPhase(batch.Running))
	if c := j.Status.Condition(batch.JobScheduled); c != nil {
		t.Errorf("the condition outlived its cause: %+v", c)
	}
	if n := len(e.eventsOf("gang")); n > 2 {
		t.Errorf("%d events", n)
	}
}

func TestTheDefaultsOfALimitRangeArePlannedWith(t *testing.T) {
	e := start(t)
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type:           corev1.LimitTypeContainer,
		DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
	}}}}
	if _, err := e.core.CoreV1().LimitRanges(e.ns).Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	silent := func(j *batch.Job) {
		j.Spec.Tasks[0].Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	}
	// When a job created after the LimitRange runs, the manager has seen the LimitRange.
	e.create(newJob("first", 1, "1", silent))
	e.until("first", inPhase(batch.Running))
	before := managerWrites(t, e.c, e.ns)["pods create"]
	e.create(newJob("j", 20, "1", silent, minAvailable(1)))
	e.until("j", func(j *batch.Job) error {
		if j.Status.Running != 15 {
			return errors.New("not yet at 15")
		}
		return nil
	})
	perNode := map[string]int{}
	for _, p := range e.pods() {
		if cpu := p.Spec.Containers[0].Resources.Requests.Cpu(); cpu.Value() != 2 {
			t.Errorf("pod %s requests %s", p.Name, cpu)
		}
		if perNode[p.Spec.NodeName]++; perNode[p.Spec.NodeName] > 2 {
			t.Errorf("node %s holds more than it has", p.Spec.NodeName)
		}
	}
	if n := managerWrites(t, e.c, e.ns)["pods create"] - before; n != 15 {
		t.Errorf("%d creates for 15 pods", n)
	}
}

func TestEachTaskHasItsMinimum(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 2, "1", withTask("worker", 40, func(t *batch.TaskSpec) { t.MinAvailable = ptr.To[int32](10) })))
	j := e.until("j", func(j *batch.Job) error {
		if j.Status.Running != 32 {
			return errors.New("not yet at 32")
		}
		return inPhase(batch.Running)(j)
	})
	if j.Status.MinAvailable != 12 || j.Status.TaskStatusCount["main"].Phase[corev1.PodRunning] != 2 {
		t.Errorf("status %s", asJSON(j.Status))
	}
	e.delete("j")
	// The workers fit, and are more than spec.minAvailable; but the job cannot start without its
	// parameter server.
	e.create(newJob("k", 1, "5", withTask("worker", 8, func(t *batch.TaskSpec) {
		t.MinAvailable = ptr.To[int32](1)
		t.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100m")
	}), minAvailable(2)))
	e.until("k", says(batch.JobScheduled, "NotEnoughResources", "cpu"))
	e.hasNoPods("k")
}

func TestPodsOfADeletedNodeAreReplaced(t *testing.T) {
	e := start(t)
	e.create(newJob("j", 16, "1"))
	e.until("j", func(j *batch.Job) error {
		if j.Status.Running != 16 {
			return errors.New("not yet all")
		}
		return nil
	})
	victim := e.podsOf("j")[0].Spec.NodeName
	if err := e.core.CoreV1().Nodes().Delete(t.Context(), victim, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nodes := localcluster.Nodes{Count: 8, CPU: "4", Memory: "8Gi"}
		if err := localcluster.CreateNodes(context.Background(), e.core, nodes); err != nil {
			t.Error(err)
		}
	})
	e.eventually("all run, elsewhere", func() error {
		n := 0
		for _, p := range e.podsOf("j") {
			if p.Spec.NodeName != victim && p.Status.Phase == corev1.PodRunning {
				n++
			}
		}
		if n != 16 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	if j := e.job("j"); j.Status.Failed != 0 || j.Status.RetryCount != 0 || j.Status.State.Phase != batch.Running {
		t.Errorf("status %s", asJSON(j.Status))
	}
}

func TestAJobsLifeTakesFewEvents(t *testing.T) {
	e := start(t)
	e.create(newJob("all", 32, "1"))
	e.until("all", inPhase(batch.Running))
	e.create(newJob("j", 20, "1", endsAfter("500ms")))
	e.until("j", says(batch.JobScheduled, "NotEnoughResources"))
	e.delete("all")
	e.until("j", inPhase(batch.Completed))
	if events := e.eventsOf("j"); len(events) > 2 {
		t.Errorf("%d events: %s", len(events), asJSON(events))
	}
	if events := e.eventsOf("all"); len(events) > 0 {
		t.Errorf("a job that nothing happened to has events: %s", asJSON(events))
	}
}

// TestAJobOfMorePodsThanAClusterHasIsInvalid checks that a job with more pods than a cluster can
// have reports the error and creates no pod, and that other jobs run.
func TestAJobOfMorePodsThanAClusterHasIsInvalid(t *testing.T) {
	e := start(t)
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: huge}
spec:
  tasks:
  - {name: a, replicas: 150000, template: {spec: {containers: [{name: c, image: busybox}]}}}
  - {name: b, replicas: 150000, template: {spec: {containers: [{name: c, image: busybox}]}}}
`)
	e.until("huge", says(batch.JobValid, batch.ReasonInvalidTemplate, "spec.tasks: 300000 replicas together"))
	e.create(newJob("other", 1, "100m"))
	e.until("other", inPhase(batch.Running))
	e.hasNoPods("huge")
}
