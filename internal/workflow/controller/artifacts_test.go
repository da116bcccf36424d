package controller_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// makers are templates whose simulated pods report saved artifacts.
const makers = `
- name: main
  steps:
  - - {name: a, template: make, arguments: {parameters: [{name: key, value: a}]}}
    - {name: b, template: make, arguments: {parameters: [{name: key, value: b}]}}
    - {name: kept, template: keep}
- name: make
  inputs: {parameters: [{name: key}]}
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"artifacts":[{"name":"out","location":{"s3":{"bucket":"b","endpoint":"e","key":"{{inputs.parameters.key}}"}}}]}'}}
  outputs: {artifacts: [{name: out, path: /o, s3: {bucket: b, endpoint: e, key: "{{inputs.parameters.key}}"}}]}
  container: {image: x, command: [x]}
- name: keep
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"artifacts":[{"name":"out","location":{"s3":{"bucket":"b","endpoint":"e","key":"kept"}}}]}'}}
  outputs: {artifacts: [{name: out, path: /o, s3: {bucket: b, endpoint: e, key: kept}, artifactGC: {strategy: Never}}]}
  container: {image: x, command: [x]}
- name: forever
  container: {image: x, command: [x]}
`

// collectors returns the pods that delete a workflow's artifacts.
func (e *env) collectors(name string) []corev1.Pod {
	e.Helper()
	var out []corev1.Pod
	for _, p := range e.pods(name) {
		if p.Labels[wf.LabelComponent] == wf.ComponentArtifactGC {
			out = append(out, p)
		}
	}
	return out
}

func (e *env) delete(name string) {
	e.Helper()
	if err := e.argo.Delete().Namespace(e.ns).Resource("workflows").Name(name).Do(e.Context()).Error(); err != nil {
		e.Fatal(err)
	}
}

func (e *env) untilGone(name string) {
	e.Helper()
	e.eventually(name+" is gone", func() error {
		w, err := e.get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("finalizers %v, conditions %v, %w", w.Finalizers, w.Status.Conditions, err)
	})
}

func marked(w *wf.Workflow) string {
	var out []string
	for _, name := range []string{"a", "b", "kept"} {
		for _, n := range w.Status.Nodes {
			if n.DisplayName == name && n.Outputs != nil && n.Outputs.Artifacts[0].Deleted {
				out = append(out, name)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestArtifactsAreDeletedOnCompletion(t *testing.T) {
	e := start(t)
	e.submit("done", `
artifactGC: {strategy: OnWorkflowCompletion, podMetadata: {labels: {mine: "yes"}, annotations: {lockstep.dev/sim-duration: 50ms}}}
entrypoint: main
templates:`+makers)
	w := e.until("done", func(w *wf.Workflow) error {
		if marked(w) != "a b" {
			return fmt.Errorf("deleted: %q", marked(w))
		}
		return inPhase(wf.WorkflowSucceeded)(w)
	})
	if !w.Status.ArtifactGCStatus.StrategiesProcessed[wf.ArtifactGCOnCompletion] || len(w.Status.ArtifactGCStatus.PodsRecouped) != 1 {
		t.Errorf("status %+v", w.Status.ArtifactGCStatus)
	}
	e.eventually("its pod is gone", func() error {
		if n := len(e.collectors("done")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	if calls := managerCalls(t, e.c, e.ns); calls["pods create"] != 4 || calls["workflows get"] > 2 {
		t.Errorf("calls %v", calls)
	}
	e.delete("done") // artifacts with strategy Never stay, and there are no others
	e.untilGone("done")
}

func TestArtifactsAreDeletedWithTheirWorkflow(t *testing.T) {
	t.Parallel()
	e := start(t)
	spec := `
artifactGC: {strategy: OnWorkflowDeletion, podMetadata: {annotations: {lockstep.dev/sim-duration: 300ms}}}
entrypoint: main
templates:` + makers
	e.submit("kept", spec)
	e.submit("expires", "ttlStrategy: {secondsAfterCompletion: 0}"+spec)
	e.submit("running", strings.Replace(spec, "  - - {name: a,", "  - - {name: wait, template: forever}\n    - {name: a,", 1))
	e.submit("foreground", spec)
	for _, name := range []string{"kept", "foreground"} {
		if w := e.until(name, inPhase(wf.WorkflowSucceeded)); !strings.Contains(fmt.Sprint(w.Finalizers), wf.FinalizerArtifactGC) {
			t.Errorf("finalizers %v", w.Finalizers)
		}
	}
	e.untilGone("expires")
	e.until("running", func(w *wf.Workflow) error {
		for _, n := range w.Status.Nodes {
			if n.DisplayName == "a" && n.Phase == wf.PhaseSucceeded {
				return nil
			}
		}
		return errors.New("a is not done")
	})
	e.delete("running")
	e.untilGone("running")
	e.delete("kept")
	e.eventually("a pod deletes the artifacts", func() error {
		if n := len(e.collectors("kept")); n != 1 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	e.untilGone("kept")
	policy := metav1.DeletePropagationForeground
	if err := e.argo.Delete().Namespace(e.ns).Resource("workflows").Name("foreground").Body(&metav1.DeleteOptions{PropagationPolicy: &policy}).Do(e.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	e.untilGone("foreground")
	e.eventually("no pod is left", func() error {
		if list, err := e.core.CoreV1().Pods(e.ns).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			return fmt.Errorf("%d pods, %w", len(list.Items), err)
		}
		return nil
	})
	if calls := managerCalls(t, e.c, e.ns); calls["pods create"] != 4*3+4+1 {
		t.Errorf("calls %v", calls)
	}
}

// TestArtifactsThatCannotBeDeleted checks that the workflow reports the failure and stays until a
// user removes the finalizer or tries again.
func TestArtifactsThatCannotBeDeleted(t *testing.T) {
	e := start(t)
	fails := `
artifactGC: {strategy: OnWorkflowDeletion, podMetadata: {annotations: {lockstep.dev/sim-duration: 20ms, lockstep.dev/sim-exit-code: "1", lockstep.dev/sim-message: '{"lockstep":1,"failed":true,"left":[1],"message":"artifact x: no bucket"}'}}}
entrypoint: main
templates:` + makers
	e.submit("stays", fails)
	e.submit("forced", strings.Replace(fails, "OnWorkflowDeletion,", "OnWorkflowDeletion, forceFinalizerRemoval: true,", 1))
	for _, name := range []string{"stays", "forced"} {
		e.until(name, inPhase(wf.WorkflowSucceeded))
		e.delete(name)
	}
	e.untilGone("forced")
	failed := func(w *wf.Workflow) error {
		for _, c := range w.Status.Conditions {
			if c.Type == wf.ConditionArtifactGCError && strings.Contains(c.Message, "1 artifacts could not be deleted: artifact x: no bucket. ") {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", w.Status.Conditions)
	}
	w := e.until("stays", failed)
	if got := marked(w); got != "a" {
		t.Errorf("deleted: %q", got)
	}
	e.patch("stays", `{"spec":{"artifactGC":{"forceFinalizerRemoval":true}}}`)
	e.untilGone("stays")
}

// TestArtifactsWithoutAStore checks that the object also shows an error if the deletion cannot be
// tried.
func TestArtifactsWithoutAStore(t *testing.T) {
	e := start(t)
	e.submit("lost", `
artifactGC: {strategy: OnWorkflowCompletion}
entrypoint: main
templates:`+strings.ReplaceAll(makers, `"location":{"s3":{"bucket":"b","endpoint":"e",`, `"location":{"s3":{`))
	e.until("lost", func(w *wf.Workflow) error {
		for _, c := range w.Status.Conditions {
			if c.Type == wf.ConditionArtifactGCError && strings.Contains(c.Message, "no artifact repository") {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", w.Status.Conditions)
	})
}

// TestAPodThatDeletesArtifactsHasItsSettings checks the environment and the volumes of the pods that
// delete artifacts, where an artifact has some of its own.
func TestAPodThatDeletesArtifactsHasItsSettings(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.submit("set", `
arguments: {parameters: [{name: region, value: north}]}
artifactGC:
  strategy: OnWorkflowCompletion
  podMetadata: {labels: {mine: "yes"}, annotations: {lockstep.dev/sim-duration: 1h}}
  env: [{name: REGION, value: "{{workflow.parameters.region}}"}, {name: TOKEN, value: /tokens/t}]
  volumes: [{name: tokens, emptyDir: {}}]
  volumeMounts: [{name: tokens, mountPath: /tokens}]
entrypoint: main
templates:`+strings.Replace(makers, "artifactGC: {strategy: Never}",
		"artifactGC: {podMetadata: {labels: {own: artifact}}, env: [{name: TOKEN, value: /own/t}], volumeMounts: [{name: tokens, mountPath: /own}]}", 1))
	var pods []corev1.Pod
	e.eventually("two pods delete", func() error {
		if pods = e.collectors("set"); len(pods) != 2 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	for _, p := range pods {
		env, mounts := map[string]string{}, map[string]string{}
		for _, v := range p.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		for _, m := range p.Spec.Containers[0].VolumeMounts {
			mounts[m.MountPath] = m.Name
		}
		token, ok := "/tokens/t", mounts["/tokens"] == "tokens" && mounts["/own"] == ""
		if p.Labels["own"] == "artifact" {
			token, ok = "/own/t", mounts["/tokens"] == "tokens" && mounts["/own"] == "tokens"
		}
		if env["REGION"] != "north" || env["TOKEN"] != token || !ok || p.Labels["mine"] != "yes" || env["LOCKSTEP_ARTIFACTS"] == "" {
			t.Errorf("pod %s: labels %v, environment %v, mounts %v", p.Name, p.Labels, env, mounts)
		}
	}
	if pods[0].Labels["own"] == pods[1].Labels["own"] {
		t.Error("no pod has the settings of the artifact")
	}
	e.submit("lacks", "artifactGC: {strategy: OnWorkflowCompletion, volumeMounts: [{name: nowhere, mountPath: /x}]}\nentrypoint: main\ntemplates:"+makers)
	e.until("lacks", func(w *wf.Workflow) error {
		for _, c := range w.Status.Conditions {
			if strings.Contains(c.Message, "artifactGC.volumeMounts: container main mounts volume 'nowhere'") {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", w.Status.Conditions)
	})
}

// TestANamespaceWithArtifactsCanBeDeleted checks that a namespace can be deleted although no pod
// can be created in a namespace that is being deleted.
func TestANamespaceWithArtifactsCanBeDeleted(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.submit("w", "artifactGC: {strategy: OnWorkflowDeletion}\nentrypoint: main\ntemplates:"+makers)
	e.until("w", inPhase(wf.WorkflowSucceeded))
	if err := e.core.CoreV1().Namespaces().Delete(t.Context(), e.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the namespace is gone", func() error {
		_, err := e.core.CoreV1().Namespaces().Get(t.Context(), e.ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

func TestManyArtifactsAreCollectedByFewPods(t *testing.T) {
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "w", UID: "u"}}
	w.Spec.ArtifactGC = &wf.WorkflowLevelArtifactGC{ArtifactGC: wf.ArtifactGC{Strategy: wf.ArtifactGCOnDeletion}}
	nodes := wf.Nodes{}
	for i := range 1200 {
		id := fmt.Sprintf("w-%d", i)
		nodes[id] = wf.NodeStatus{ID: id, Type: wf.NodePod, Outputs: &wf.Outputs{Artifacts: []wf.Artifact{{
			Name: "out", ArtifactLocation: wf.ArtifactLocation{Volume: &wf.VolumeArtifact{ClaimName: "c", Key: fmt.Sprintf("w/p-%d/%s", i, strings.Repeat("x", 200))}},
		}}}}
	}
	list, err := pods.Collections(w, nodes, []string{wf.ArtifactGCOnDeletion}, pods.Options{})
	if err != nil || len(list) != 3 {
		t.Fatalf("%d pods, %v", len(list), err)
	}
	for _, c := range list {
		if len(c.Artifacts) > 500 || len(c.Pod.Spec.Volumes) != 1 {
			t.Errorf("%d artifacts, %d volumes", len(c.Artifacts), len(c.Pod.Spec.Volumes))
		}
	}
	if list, err := pods.Collections(w, nodes, []string{wf.ArtifactGCOnCompletion}, pods.Options{}); err != nil || len(list) != 0 {
		t.Errorf("%d pods before the time, %v", len(list), err)
	}
}
