package controller_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// configuredCluster is a cluster whose manager reads the ConfigMap "argo/settings".
type configuredCluster struct{ *env }

func configured(t *testing.T, first string) *configuredCluster {
	t.Helper()
	c := unmanaged(t, first)
	managertest.Start(t, c.c, func(cfg *manager.Config) { cfg.WorkflowConfigMap = "argo/settings" })
	return c
}

// unmanaged returns the same without a manager.
func unmanaged(t *testing.T, first string) *configuredCluster {
	t.Helper()
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(),
		localtest.WithNodes(localcluster.Nodes{Count: 2, CPU: "32", Pods: 200}))
	c := &configuredCluster{newEnv(t, cluster)}
	if _, err := c.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "argo"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if first != "" {
		c.configure(first)
	}
	return c
}

// configure writes the data of the ConfigMap.
func (c *configuredCluster) configure(data string) {
	c.Helper()
	cm := &corev1.ConfigMap{}
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: argo}\ndata:\n  " +
		strings.ReplaceAll(strings.TrimSpace(data), "\n", "\n  ")
	if err := yaml.UnmarshalStrict([]byte(text), cm); err != nil {
		c.Fatalf("%v in\n%s", err, text)
	}
	_, err := c.core.CoreV1().ConfigMaps("argo").Update(c.Context(), cm, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.core.CoreV1().ConfigMaps("argo").Create(c.Context(), cm, metav1.CreateOptions{})
	}
	if err != nil {
		c.Fatal(err)
	}
}

// event waits for an event on the ConfigMap whose message contains text.
func (c *configuredCluster) event(reason, text string) {
	c.Helper()
	c.eventually("event "+reason, func() error {
		list, err := c.core.CoreV1().Events("argo").List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=settings"})
		if err != nil {
			return err
		}
		var got []string
		for _, e := range list.Items {
			if got = append(got, e.Reason+": "+e.Message); e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("events %q", got)
	})
}

const (
	pause = "entrypoint: main\ntemplates: [{name: main, suspend: {}}]\n"
	quick = "entrypoint: main\ntemplates: [{name: main, metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}, container: {image: a, command: [c]}}]\n"
)

// TestWorkflowDefaults checks defaults, that a change needs no restart, and that a configuration
// that cannot be parsed changes nothing.
func TestWorkflowDefaults(t *testing.T) {
	c := configured(t, `
config: |
  links: [{name: l, scope: workflow, url: u}]
  mainContainer: {resources: {requests: {cpu: 200m}}}
  podSpecLogStrategy: {allPods: true}
  artifactRepository: {volume: {claimName: shared}}
  workflowDefaults:
    metadata: {labels: {team: data}, annotations: {note: given}}
    spec:
      arguments: {parameters: [{name: who, value: nobody}]}
      podMetadata: {labels: {from: "{{workflow.labels.team}}"}}
      ttlStrategy: {secondsAfterCompletion: 3600}
      podGC: {strategy: OnWorkflowSuccess}
`)
	result := `
entrypoint: main
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"{{workflow.parameters.who}}"}'}}
  container: {image: a, command: [c]}
`
	c.submit("plain", result+"podGC: {strategy: OnWorkflowCompletion, deleteDelayDuration: 1h}")
	w := c.until("plain", inPhase(wf.WorkflowSucceeded))
	c.expect(w, "W Pod Succeeded result=nobody")
	if w.Labels["team"] != "data" || w.Annotations["note"] != "given" {
		t.Errorf("labels %v, annotations %v", w.Labels, w.Annotations)
	}
	if s := w.Spec; *s.TTLStrategy.SecondsAfterCompletion != 3600 || s.PodGC.Strategy != "OnWorkflowCompletion" || s.PodGC.DeleteDelayDuration != "1h" {
		t.Errorf("the spec on the server is %+v", s)
	}
	pod := c.pods("plain")[0]
	if cpu := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; cpu.String() != "200m" || pod.Labels["from"] != "data" {
		t.Errorf("the pod has cpu %s and labels %v", cpu.String(), pod.Labels)
	}
	if ref := w.Status.ArtifactRepositoryRef; ref == nil || !ref.Default || ref.ArtifactRepository.Volume.ClaimName != "shared" {
		t.Errorf("the artifact repository is %+v", ref)
	}

	// A template's fields count before the defaults, the workflow's before both.
	c.create("workflowtemplates", "library", `
spec:
  ttlStrategy: {secondsAfterCompletion: 60}
  arguments: {parameters: [{name: who, value: template}]}
  `+strings.ReplaceAll(strings.TrimSpace(result), "\n", "\n  "))
	c.submit("refers", "workflowTemplateRef: {name: library}\npodGC: {strategy: OnPodCompletion, deleteDelayDuration: 1h}")
	w = c.until("refers", inPhase(wf.WorkflowSucceeded))
	c.expect(w, "W Pod Succeeded result=template")
	if s := w.Status.StoredWorkflowTemplateSpec; *s.TTLStrategy.SecondsAfterCompletion != 60 || s.PodGC.Strategy != "OnPodCompletion" || s.PodMetadata == nil {
		t.Errorf("it runs %+v", s)
	}

	// The last good configuration stays in force, and the key is named.
	c.configure("config: |\n  workflowDefaults: {spec: {ttlStrategi: {}}}")
	c.event("ConfigurationRefused", `workflowDefaults: strict decoding error: unknown field "spec.ttlStrategi"`)
	c.submit("meanwhile", result)
	c.expect(c.until("meanwhile", inPhase(wf.WorkflowSucceeded)), "W Pod Succeeded result=nobody")

	// A change counts without a restart, in the other form, too.
	c.configure("navColor: red\nworkflowDefaults: |\n  spec: {arguments: {parameters: [{name: who, value: changed}]}}")
	c.event("ConfigurationPartlyUsed", "navColor: is read by Argo's server")
	c.submit("later", result)
	w = c.until("later", inPhase(wf.WorkflowSucceeded))
	c.expect(w, "W Pod Succeeded result=changed")
	if w.Spec.TTLStrategy != nil || w.Labels["team"] != "" {
		t.Errorf("defaults of the earlier configuration: %+v, %v", w.Spec, w.Labels)
	}
}

// TestDefaultsThatTheServerRefuses checks that defaults against the schema of the CRD harm nobody.
func TestDefaultsThatTheServerRefuses(t *testing.T) {
	c := configured(t, "workflowDefaults: |\n  spec: {retryStrategy: {retryPolicy: Sometimes}, podGC: {strategy: Never}}")
	c.submit("hi", quick)
	c.until("hi", func(w *wf.Workflow) error {
		if !w.Status.Phase.Completed() {
			return errors.New("it has not ended")
		}
		return nil
	})
}

// TestParallelismOfWorkflows checks the limits of the cluster, of namespaces and of labels, the
// order of those that wait, and that a change of the limit counts at once.
func TestParallelismOfWorkflows(t *testing.T) {
	c := configured(t, "parallelism: '2'\nnamespaceParallelism: '1'")
	for _, name := range []string{"first", "second", "third"} {
		c.submit(name, pause)
		if name == "first" {
			c.until(name, inPhase(wf.WorkflowRunning))
		}
	}
	c.submit("urgent", pause+"priority: 5")
	waits := func(w *wf.Workflow) error {
		if err := inPhase(wf.WorkflowPending)(w); err != nil {
			return err
		}
		if want := "waits: 2 workflows may run at a time, 1 in the namespace"; w.Status.Message != want {
			return fmt.Errorf("the message is %q, not %q", w.Status.Message, want)
		}
		return nil
	}
	for _, name := range []string{"second", "third", "urgent"} {
		if w := c.until(name, waits); len(w.Status.Nodes) > 0 {
			t.Errorf("%s has begun\n%s", name, table(w))
		}
	}
	// The priority decides, then the age; a workflow that is stopped while it waits ends.
	c.patch("second", `{"spec":{"shutdown":"Terminate"}}`)
	c.until("second", inPhase(wf.WorkflowFailed))
	c.patch("first", `{"spec":{"shutdown":"Terminate"}}`)
	c.until("urgent", inPhase(wf.WorkflowRunning))
	if w, err := c.get("third"); err != nil || w.Status.Phase != wf.WorkflowPending {
		t.Errorf("third: %v %v", w.Status.Phase, err)
	}
	// The label of the namespace counts before the configuration, up to the limit of the cluster.
	label := `{"metadata":{"labels":{"workflows.argoproj.io/parallelism-limit":"5"}}}`
	if _, err := c.core.CoreV1().Namespaces().Patch(t.Context(), c.ns, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until("third", inPhase(wf.WorkflowRunning))
	c.submit("fourth", pause)
	c.until("fourth", inPhase(wf.WorkflowPending))
	c.configure("parallelism: '3'")
	c.until("fourth", inPhase(wf.WorkflowRunning))
}

// TestNeverMoreRunThanMay checks with many short workflows that never more run than may, and that
// all run.
func TestNeverMoreRunThanMay(t *testing.T) {
	c := configured(t, "parallelism: '3'")
	most := c.mostPods()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("w%d", i))
		c.submit(names[i], quick)
	}
	for _, name := range names {
		c.until(name, inPhase(wf.WorkflowSucceeded))
	}
	if n := most(); n == 0 || n > 3 {
		t.Errorf("%d ran at a time, of 3", n)
	}
}

// mostPods counts the pods that have not succeeded. The function that it returns ends that and returns
// how many there were at a time.
func (c *configuredCluster) mostPods() func() int {
	c.Helper()
	most, ended := make(chan int), make(chan struct{})
	watch, err := c.core.CoreV1().Pods(c.ns).Watch(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	go func() {
		now, max := map[string]bool{}, 0
		defer watch.Stop()
		for {
			select {
			case event := <-watch.ResultChan():
				p, isPod := event.Object.(*corev1.Pod)
				if !isPod {
					continue
				}
				now[p.Name] = p.Status.Phase != corev1.PodSucceeded && p.DeletionTimestamp == nil
				n := 0
				for _, runs := range now {
					if runs {
						n++
					}
				}
				if n > max {
					max = n
				}
			case <-ended:
				most <- max
				return
			}
		}
	}()
	return func() int {
		close(ended)
		return <-most
	}
}

// TestSeveralManagersKeepTheLimit has three managers share workflows while only three may run at a
// time, and kills the leader among them: the next one counts those that run.
func TestSeveralManagersKeepTheLimit(t *testing.T) {
	t.Parallel()
	c := unmanaged(t, "parallelism: '3'\nnamespaceParallelism: '2'")
	label := `{"metadata":{"labels":{"workflows.argoproj.io/parallelism-limit":"3"}}}`
	if _, err := c.core.CoreV1().Namespaces().Patch(t.Context(), c.ns, types.MergePatchType, []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	first := c.startManager("--workflow-configmap=argo/settings")
	c.submit("alone", quick)
	c.until("alone", inPhase(wf.WorkflowSucceeded)) // the first one leads
	c.startManager("--workflow-configmap=argo/settings")
	c.startManager("--workflow-configmap=argo/settings")
	most := c.mostPods()
	var names []string
	submit := func(n int) {
		for range n {
			name := fmt.Sprintf("w%d", len(names))
			names = append(names, name)
			c.submit(name, quick)
		}
	}
	submit(12)
	c.eventually("some have run, and some wait", func() error {
		count := map[wf.WorkflowPhase]int{}
		for _, name := range names {
			w, err := c.get(name)
			if err != nil {
				return err
			}
			count[w.Status.Phase]++
		}
		if count[wf.WorkflowSucceeded] == 0 {
			return fmt.Errorf("%v", count)
		}
		return nil
	})
	first.kill()
	submit(6)
	for _, name := range names {
		c.untilWithin(time.Minute, name, inPhase(wf.WorkflowSucceeded))
	}
	if n := most(); n == 0 || n > 3 {
		t.Errorf("%d ran at a time, of 3", n)
	}
}

// TestRestrictedWorkflows checks Strict and Secure.
func TestRestrictedWorkflows(t *testing.T) {
	c := configured(t, "workflowRestrictions: 'templateReferencing: Strict'\nworkflowDefaults: 'spec: {serviceAccountName: default}'")
	c.create("workflowtemplates", "library", "spec:\n  "+strings.ReplaceAll(strings.TrimSpace(quick), "\n", "\n  "))
	refused := func(name, want string) {
		t.Helper()
		if w := c.until(name, inPhase(wf.WorkflowError)); !strings.Contains(w.Status.Message, want) || len(c.pods(name)) > 0 {
			t.Errorf("%s: %q, %d pods", name, w.Status.Message, len(c.pods(name)))
		}
	}
	c.submit("own", quick)
	c.submit("patched", "workflowTemplateRef: {name: library}\npodSpecPatch: 'hostNetwork: true'")
	c.submit("good", "workflowTemplateRef: {name: library}\nttlStrategy: {secondsAfterCompletion: 3600}")
	refused("own", "workflowTemplateRef: is required: workflowRestrictions.templateReferencing in the ConfigMap argo/settings is Strict")
	refused("patched", "podSpecPatch: only the template may set")
	c.until("good", inPhase(wf.WorkflowSucceeded))

	c.configure("workflowRestrictions: 'templateReferencing: Secure'")
	c.submit("secured", "workflowTemplateRef: {name: library}")
	c.until("secured", inPhase(wf.WorkflowSucceeded))
	c.create("workflows", "forged", `
spec: {workflowTemplateRef: {name: library}}
status:
  storedWorkflowTemplateSpec:
    entrypoint: main
    templates: [{name: main, container: {image: mine, command: [mine]}}]`)
	refused("forged", "has changed since it began, or its status was changed")
}

// TestRetention checks that the workflows that ended first are deleted.
func TestRetention(t *testing.T) {
	c := configured(t, "retentionPolicy: 'completed: 2'")
	for _, name := range []string{"a", "b", "c", "d"} {
		c.submit(name, quick)
		c.until(name, inPhase(wf.WorkflowSucceeded))
	}
	c.submit("failed", strings.Replace(quick, "50ms", `50ms, lockstep.dev/sim-exit-code: "1"`, 1))
	c.until("failed", inPhase(wf.WorkflowFailed))
	c.eventually("the deletion of two", func() error {
		list := &wf.WorkflowList{}
		if err := c.argo.Get().Namespace(c.ns).Resource("workflows").Do(t.Context()).Into(list); err != nil {
			return err
		}
		left := map[string]bool{}
		for _, w := range list.Items {
			left[w.Name] = true
		}
		if len(left) != 3 || !left["failed"] {
			return fmt.Errorf("left are %v", slices.Sorted(maps.Keys(left)))
		}
		return nil
	})
}

// TestInstances checks that a manager runs only the workflows and crons of its instance, and that it
// begins with those of another when its instance is changed.
func TestInstances(t *testing.T) {
	c := configured(t, "instanceID: blue")
	in := func(name, id string) {
		c.create("workflows", name, "metadata: {labels: {workflows.argoproj.io/controller-instanceid: "+id+"}}\nspec:\n  "+
			strings.ReplaceAll(strings.TrimSpace(quick), "\n", "\n  "))
	}
	c.submit("nobodys", quick)
	in("reds", "red")
	c.create("cronworkflows", "often", `
metadata: {labels: {workflows.argoproj.io/controller-instanceid: blue}}
spec: {schedules: ["* * * * *"], startingDeadlineSeconds: 300, workflowSpec: {entrypoint: main, templates: [{name: main, suspend: {}}]}}`)
	in("blues", "blue")
	c.until("blues", inPhase(wf.WorkflowSucceeded))
	if p := c.pods("blues"); len(p) != 1 || p[0].Labels[wf.LabelInstanceID] != "blue" {
		t.Errorf("the pod has labels %v", p[0].Labels)
	}
	for _, name := range []string{"nobodys", "reds"} {
		if w, err := c.get(name); err != nil || w.Status.Phase != wf.WorkflowUnknown {
			t.Errorf("%s is %q: %v", name, w.Status.Phase, err)
		}
	}
	c.configure("instanceID: red")
	c.until("reds", inPhase(wf.WorkflowSucceeded))
	c.configure("parallelism: '100'")
	c.until("nobodys", inPhase(wf.WorkflowSucceeded))
}

// TestAManagerThatFindsABadConfiguration checks that it begins no workflow, says why, and begins
// them when the configuration has been mended.
func TestAManagerThatFindsABadConfiguration(t *testing.T) {
	c := configured(t, "parallelism: many")
	c.submit("early", quick)
	c.until("early", func(w *wf.Workflow) error {
		if want := "waits: the ConfigMap argo/settings cannot be used: parallelism: many is not a whole number"; w.Status.Message != want {
			return fmt.Errorf("the message is not %q", want)
		}
		return nil
	})
	c.configure("parallelism: '1'")
	c.until("early", inPhase(wf.WorkflowSucceeded))
}
