package manager_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// dropIn is a manifest of a pod as users of ACK or Koordinator write it, without a scheduler.
func dropIn(name, marks, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", " + marks + "}\nspec: {" + spec +
		"containers: [{name: main, image: busybox, resources: {requests: {cpu: 2, memory: 64Mi}, limits: {cpu: 4, memory: 64Mi}}}," +
		" {name: log, image: busybox, resources: {limits: {cpu: 500m, memory: 64Mi}}}]}\n"
}

const (
	ackMarks = `annotations: {cpuset-scheduler: "true"}`
	lsrMarks = "labels: {koordinator.sh/qosClass: LSR, koordinator.sh/priority-class: koord-prod}"
	// lsr is the container of a pod of Koordinator.
	lsrPod = "containers: [{name: main, image: busybox, resources: {requests: {cpu: 4, memory: 64Mi}, limits: {cpu: 4, memory: 64Mi}}}]}\n"
)

// labelNamespace sets the label by which pods that request CPUs get Lockstep's scheduler, and waits
// until the policy knows.
func (e *env) labelNamespace(value string) {
	e.Helper()
	patch := asJSON(map[string]any{"metadata": map[string]any{"labels": map[string]any{topology.SchedulerLabel: value}}})
	if _, err := e.core.CoreV1().Namespaces().Patch(e.Context(), e.ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

// schedulerOf returns the scheduler that a new pod of the namespace gets.
func (e *env) schedulerOf(annotations map[string]string) (string, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry-run", Annotations: annotations}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "busybox", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}}}
	made, err := e.core.CoreV1().Pods(e.ns).Create(e.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return "", err
	}
	return made.Spec.SchedulerName, nil
}

// untilScheduler waits until new pods that request CPUs get this scheduler.
func (e *env) untilScheduler(want string) {
	e.Helper()
	e.eventually("pods get scheduler "+want, func() error {
		got, err := e.schedulerOf(map[string]string{topology.ACKSchedulerAnnotation: "true"})
		if err == nil && got != want {
			err = fmt.Errorf("they get %s", got)
		}
		return err
	})
}

// eventOf waits for the event CPUsNotChosen of a pod.
func (e *env) eventOf(pod string, parts ...string) {
	e.Helper()
	e.eventually("an event of pod "+pod, func() error {
		list, err := e.core.CoreV1().Events(e.ns).List(e.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Reason == "CPUsNotChosen" && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(event.Message, p) }) {
				return nil
			}
		}
		return fmt.Errorf("the events are %+v", list.Items)
	})
}

// installedCluster starts a cluster of Kubernetes' own parts, its scheduler among them, and brings
// Lockstep there as users do: by the command install.
func installedCluster(t *testing.T) *localcluster.Cluster {
	t.Helper()
	nodes := localcluster.Nodes{Count: 2, CPU: "256", Memory: "1Ti", Pods: 50}
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithNodes(nodes))
	var out strings.Builder
	if code := cli.Run([]string{"install", "--kubeconfig", c.Kubeconfig(), "--cpu-policies"}, strings.NewReader(""), &out, &out); code != 0 {
		t.Fatalf("lockstep install ends with %d: %s", code, out.String())
	}
	nodes.Topology = machines.AMD256NPS4.Name // what agents would report
	if err := localcluster.CreateNodeTopologies(t.Context(), c.RESTConfig(), nodes); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDropInAfterInstall runs pods of ACK's and Koordinator's users in a cluster that `lockstep up` has
// not made.
func TestDropInAfterInstall(t *testing.T) {
	t.Parallel()
	c := installedCluster(t)
	managertest.Start(t, c)
	t.Run("the examples in both dialects", func(t *testing.T) { cpuExamplesRun(t, c) })
	t.Run("pods of other systems", func(t *testing.T) { podsOfOtherSystemsAreDroppedIn(t, c) })
}

// cpuExamplesRun creates the manifests of examples/cpu exactly as they are.
func cpuExamplesRun(t *testing.T, c *localcluster.Cluster) {
	e := newEnv(t, c)
	read := func(name string) string {
		data, err := os.ReadFile("../../examples/cpu/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	namespace, workloads, _ := strings.Cut(read("drop-in.yaml"), "\n---\n")
	e.apply(namespace)
	its := *e
	its.ns = "cpu-drop-in"
	its.untilScheduler("lockstep")
	its.apply(workloads)
	e.apply(read("pinned.yaml"))

	for _, job := range []string{"solver", "pi", "quiet"} {
		e.says(jobs, job, `"phase":"Completed"`)
	}
	its.eventually("the Deployment and the pod of the example run", func() error {
		pods, err := its.core.CoreV1().Pods(its.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != 3 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		for _, p := range pods.Items {
			answer := topology.ACKResultAnnotation
			if p.Name == "db" {
				answer = topology.KoordinatorResultAnnotation
			}
			if p.Status.Phase != corev1.PodRunning || p.Spec.SchedulerName != "lockstep" || p.Annotations[answer] == "" || p.Annotations[topology.ResultAnnotation] == "" {
				return fmt.Errorf("pod %s: %s, of scheduler %s, annotations %v", p.Name, p.Status.Phase, p.Spec.SchedulerName, p.Annotations)
			}
		}
		return nil
	})
	for _, p := range e.pods() {
		if p.Annotations[topology.ResultAnnotation] == "" || strings.HasPrefix(p.Name, "pi-") != (p.Annotations[topology.ACKResultAnnotation] != "") {
			t.Errorf("pod %s has annotations %v", p.Name, p.Annotations)
		}
	}
	if n := len(e.pods()); n != 8 {
		t.Errorf("the jobs of the example have %d pods", n)
	}
}

// podsOfOtherSystemsAreDroppedIn creates pods as users of ACK and Koordinator do.
func podsOfOtherSystemsAreDroppedIn(t *testing.T, c *localcluster.Cluster) {
	labelled, plain := newEnv(t, c), newEnv(t, c)
	labelled.labelNamespace("lockstep")
	labelled.untilScheduler("lockstep")

	for name, annotations := range map[string]map[string]string{
		"nothing": nil, "switched off": {topology.ACKSchedulerAnnotation: "false"}, "ours, switched off": {topology.RequestAnnotation: "false"},
	} {
		if got, err := labelled.schedulerOf(annotations); err != nil || got != corev1.DefaultSchedulerName {
			t.Errorf("a pod that asks for %s gets scheduler %s, %v", name, got, err)
		}
	}
	if got, err := plain.schedulerOf(map[string]string{topology.ACKSchedulerAnnotation: "true"}); err != nil || got != corev1.DefaultSchedulerName {
		t.Errorf("a pod of a namespace without the label gets scheduler %s, %v", got, err)
	}

	labelled.apply(dropIn("ack", ackMarks, ""))
	labelled.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: koordinator, " + lsrMarks + "}\nspec: {" + lsrPod)
	labelled.says(podResource, "ack", `"phase":"Running"`)
	labelled.says(podResource, "koordinator", `"phase":"Running"`)
	for _, p := range labelled.pods() {
		answer := map[string]string{"ack": topology.ACKResultAnnotation, "koordinator": topology.KoordinatorResultAnnotation}[p.Name]
		if p.Spec.SchedulerName != "lockstep" || p.Annotations[answer] == "" || strings.Contains(p.Annotations[topology.ResultAnnotation], `"log"`) {
			t.Errorf("pod %s: scheduler %s, annotations %v", p.Name, p.Spec.SchedulerName, p.Annotations)
		}
	}

	plain.apply(dropIn("unscheduled", ackMarks, ""))
	plain.eventOf("unscheduled", "cpuset-scheduler", "schedulerName lockstep", topology.SchedulerLabel)
	labelled.apply(dropIn("placed", ackMarks, "nodeName: "+localcluster.NodeName(0)+", schedulerName: lockstep, "))
	labelled.eventOf("placed", "cpuset-scheduler", "spec.nodeName")
	plain.apply(dropIn("other", ackMarks, "schedulerName: somebody, "))

	labelled.apply(dropIn("partly", `annotations: {cpuset-scheduler: "true", koordinator.sh/memoryLocality: "{}", alibabacloud.com/cpuBurst: "{}"}`, ""))
	labelled.says(podResource, "partly", `"type":"cpu.lockstep.dev/RequestRead"`, `"status":"False"`,
		"without effect here: alibabacloud.com/cpuBurst, koordinator.sh/memoryLocality")
	labelled.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: be, labels: {koordinator.sh/qosClass: BE}}\nspec: {schedulerName: lockstep, containers: [{name: main, image: busybox," +
		" resources: {requests: {kubernetes.io/batch-cpu: 1000}, limits: {kubernetes.io/batch-cpu: 1000}}}]}\n")
	labelled.says(podResource, "be", `"type":"cpu.lockstep.dev/RequestRead"`, "kubernetes.io/batch-cpu", "shared pool")
	for _, p := range append(plain.pods(), labelled.pods()...) {
		told := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == topology.RequestRead })
		if told != (p.Name == "partly" || p.Name == "be") {
			t.Errorf("pod %s: its conditions are %+v", p.Name, p.Status.Conditions)
		}
	}
	list, err := plain.core.CoreV1().Events(plain.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=other,reason=CPUsNotChosen"})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("the pod of another scheduler has events %+v, %v", list, err)
	}

	// All namespaces, except those that say none.
	if err := install.With(install.Options{CPUsEverywhere: true})(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	plain.untilScheduler("lockstep")
	plain.labelNamespace("none")
	plain.untilScheduler(corev1.DefaultSchedulerName)
}

// TestNobodyAnswersInTheFormsOfOthers checks that users cannot set the answers to requests for CPUs,
// whatever scheduler a pod names, and that other schedulers can on pods of theirs.
func TestNobodyAnswersInTheFormsOfOthers(t *testing.T) {
	t.Parallel()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall())
	e := newEnv(t, c)
	mallory := e.tenant("mallory", "edit")
	answer := map[string]string{"cpuset": `"{}"`, "scheduling.koordinator.sh/resource-status": `"{}"`}
	pod := func(scheduler, annotations, labels string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: taken, annotations: {" + annotations + "}, labels: {" + labels + "}}\nspec: {schedulerName: " + scheduler + ", " + lsrPod
	}
	for key, value := range answer {
		for name, manifest := range map[string]string{
			"a pod of ours":                       pod("lockstep", key+": "+value, ""),
			"a pod that asks in ACK's form":       pod("default-scheduler", `cpuset-scheduler: "true", `+key+": "+value, ""),
			"the same for a manager's other name": pod("koord-scheduler", `cpuset-scheduler: "true", `+key+": "+value, ""),
			"a pod that asks in Koordinator's":    pod("koord-scheduler", key+": "+value, "koordinator.sh/qosClass: LSR, koordinator.sh/priority-class: koord-prod"),
			"a pod that asks in ours":             pod("koord-scheduler", `cpu.lockstep.dev/request: "true", `+key+": "+value, ""),
		} {
			e.eventually(name+" with "+key, func() error {
				if err := mallory.try(manifest); err == nil || !strings.Contains(err.Error(), "metadata.annotations["+key+"]") {
					return fmt.Errorf("%w: want a refusal that names the annotation", err)
				}
				return nil
			})
		}
	}
	// A pod that has nothing to do with CPUs may have the annotation.
	if err := mallory.try(pod("default-scheduler", `cpuset: "mine"`, "")); err != nil {
		t.Error(err)
	}
	scheduler := e.tenant("scheduler", "edit")
	e.apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: binds}\nrules: [{apiGroups: [''], resources: [pods/binding], verbs: [create]}]\n---\n" +
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: binds}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: binds}\n" +
		"subjects: [{kind: ServiceAccount, name: scheduler, namespace: " + e.ns + "}]\n")
	if err := e.try(strings.Replace(pod("koord-scheduler", `cpuset-scheduler: "true"`, ""), "taken", "theirs", 1)); err != nil {
		t.Fatal(err)
	}
	e.eventually("another scheduler answers on its own pod", func() error {
		_, err := scheduler.dyn.Resource(podResource).Namespace(e.ns).Patch(t.Context(), "theirs", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"cpuset":"{}"}}}`), metav1.PatchOptions{})
		return err
	})
}
