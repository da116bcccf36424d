package controller_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestClaimsAndDisruptionBudget checks that the claims and the disruption budget of a workflow
// exist before its first pod, and are deleted as requested.
func TestClaimsAndDisruptionBudget(t *testing.T) {
	t.Parallel()
	e := start(t)
	spec := `
podDisruptionBudget: {minAvailable: 1}
volumeClaimTemplates: [{metadata: {name: work}, spec: {accessModes: [ReadWriteOnce], volumeName: VOLUME, storageClassName: "", resources: {requests: {storage: 1Mi}}}}]
entrypoint: main
templates:
- {name: main, metadata: {annotations: {lockstep.dev/sim-duration: 1s}}, container: {image: x, command: [x], volumeMounts: [{name: work, mountPath: /w}]}}
- {name: bad, metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-exit-code: "1"}}, container: {image: x, command: [x], volumeMounts: [{name: work, mountPath: /w}]}}
`
	kept := strings.Replace(spec, "entrypoint: main", "entrypoint: bad", 1)
	for name, text := range map[string]string{
		"ends": spec, "fails": kept, "fails-all": "volumeClaimGC: {strategy: OnWorkflowCompletion}" + kept,
	} {
		volume := e.ns + "-" + name
		_, err := e.core.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: volume},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				// Claims without a class of tests that run at the same time could take the volume.
				ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: e.ns, Name: name + "-work"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = e.core.CoreV1().PersistentVolumes().Delete(t.Context(), volume, metav1.DeleteOptions{})
		})
		e.submit(name, strings.ReplaceAll(text, "VOLUME", volume))
	}
	e.eventually("the first pod has its claim, and a budget", func() error {
		if _, err := e.core.PolicyV1().PodDisruptionBudgets(e.ns).Get(t.Context(), "ends", metav1.GetOptions{}); err != nil {
			return err
		}
		for _, p := range e.pods("ends") {
			for _, v := range p.Spec.Volumes {
				if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == "ends-work" {
					return nil
				}
			}
		}
		return fmt.Errorf("pods %v", e.pods("ends"))
	})
	for name, c := range map[string]struct {
		phase wf.WorkflowPhase
		claim bool
	}{"ends": {wf.WorkflowSucceeded, false}, "fails": {wf.WorkflowFailed, true}, "fails-all": {wf.WorkflowFailed, false}} {
		w := e.until(name, inPhase(c.phase))
		if (len(w.Status.PersistentVolumeClaims) == 1) != c.claim {
			t.Errorf("%s: claims in the status: %v", name, w.Status.PersistentVolumeClaims)
		}
		e.eventually("claims and budgets of "+name+" are as they are to be", func() error {
			claim, err := e.core.CoreV1().PersistentVolumeClaims(e.ns).Get(t.Context(), name+"-work", metav1.GetOptions{})
			// Once a claim is being deleted, only the end of the pod removes its protection.
			if gone := apierrors.IsNotFound(err) || err == nil && claim.DeletionTimestamp != nil; gone == c.claim {
				return fmt.Errorf("claim %v, %w", claim, err)
			}
			if _, err := e.core.PolicyV1().PodDisruptionBudgets(e.ns).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the budget is there: %w", err)
			}
			return nil
		})
	}
}

func TestLabelsOfAWorkflow(t *testing.T) {
	e := start(t)
	e.submit("labelled", `
workflowMetadata:
  labels: {team: blue}
  annotations: {note: "by hand"}
  labelsFrom: {who: {expression: "workflow.parameters.who + '-' + workflow.name"}}
arguments: {parameters: [{name: who, value: you}]}
entrypoint: quick
templates:`+stepTemplates)
	w := e.until("labelled", inPhase(wf.WorkflowSucceeded))
	if w.Labels["team"] != "blue" || w.Labels["who"] != "you-labelled" || w.Annotations["note"] != "by hand" {
		t.Errorf("labels %v, annotations %v", w.Labels, w.Annotations)
	}
	e.create("workflowtemplates", "base", `
spec:
  workflowMetadata: {labelsFrom: {who: {expression: "workflow.parameters.who + '-' + workflow.parameters.of + '-' + workflow.mainEntrypoint"}}}
  arguments: {parameters: [{name: who, value: nobody}, {name: of, default: here}]}
  entrypoint: quick
  templates: [{name: quick, suspend: {duration: "0"}}]
`)
	e.submit("by-template", `
workflowTemplateRef: {name: base}
arguments: {parameters: [{name: who, value: you}]}
`)
	if w := e.until("by-template", inPhase(wf.WorkflowSucceeded)); w.Labels["who"] != "you-here-quick" {
		t.Errorf("labels %v", w.Labels)
	}
	e.submit("wrong", `
workflowMetadata: {labelsFrom: {who: {expression: "'no label: ' + workflow.name"}}}
entrypoint: quick
templates:`+stepTemplates)
	if w := e.until("wrong", inPhase(wf.WorkflowError)); !strings.Contains(w.Status.Message, "workflowMetadata.labelsFrom.who.expression") {
		t.Errorf("message %q", w.Status.Message)
	}
}

// TestAQuotaIsWaitedFor checks that a pod refused by a quota is shown as pending with the server's
// reason, and is created when the quota allows it.
func TestAQuotaIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := start(t)
	quotas := e.core.CoreV1().ResourceQuotas(e.ns)
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.eventually("the quota is in force", func() error {
		q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = fmt.Errorf("status %v", q.Status)
		}
		return err
	})
	e.submit("waits", "entrypoint: quick\ntemplates:"+stepTemplates)
	e.until("waits", func(w *wf.Workflow) error {
		if n := w.Status.Nodes["waits"]; n.Phase != wf.PhasePending || !strings.Contains(n.Message, "exceeded quota") {
			return fmt.Errorf("node is %s: %s", n.Phase, n.Message)
		}
		return nil
	})
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		q.Spec.Hard[corev1.ResourcePods] = resource.MustParse("1")
		_, err = quotas.Update(t.Context(), q, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e.until("waits", inPhase(wf.WorkflowSucceeded))
}

// TestAClaimThatIsNeverAccepted checks that a workflow ends in Error if the server refuses its
// volume claim as invalid: the same claim would be refused for ever.
func TestAClaimThatIsNeverAccepted(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.submit("claims", `
volumeClaimTemplates:
- metadata: {name: good}
  spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
- metadata: {name: work}
  spec: {accessModes: [Sometimes], resources: {requests: {storage: 1Mi}}}
entrypoint: quick
templates:`+stepTemplates)
	w := e.until("claims", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "claims-work") || !strings.Contains(w.Status.Message, "accessModes") {
		t.Errorf("message %q", w.Status.Message)
	}
}

// TestEstimates checks that the estimated duration of a workflow is the duration of the last
// workflow of its template.
func TestEstimates(t *testing.T) {
	e := start(t)
	e.create("workflowtemplates", "slow", `
spec:
  entrypoint: main
  templates: [{name: main, metadata: {annotations: {lockstep.dev/sim-duration: 1100ms}}, container: {image: x, command: [x]}}]
`)
	e.submit("first", "workflowTemplateRef: {name: slow}")
	if w := e.until("first", inPhase(wf.WorkflowSucceeded)); w.Status.EstimatedDuration != 0 {
		t.Errorf("%d s are expected of what was never seen", w.Status.EstimatedDuration)
	}
	e.submit("second", "workflowTemplateRef: {name: slow}")
	if w := e.until("second", inPhase(wf.WorkflowSucceeded)); w.Status.EstimatedDuration < 1 {
		t.Errorf("%d s are expected", w.Status.EstimatedDuration)
	}
}

// TestManifestsAsPeopleWriteThem checks that values that are not strings, and fields of earlier
// versions, pass the server's strict validation and keep their meaning.
func TestManifestsAsPeopleWriteThem(t *testing.T) {
	e := start(t)
	values := `[{name: i, value: 5}, {name: f, value: 1.50}, {name: b, value: true}, {name: s, default: 7, description: 8}]`
	spec := `
entrypoint: main
arguments: {parameters: ` + values + `}
templates:
- name: main
  inputs: {parameters: [{name: own, value: 3}, {name: none, value: null, default: 0}]}
  dag: {tasks: [{name: a, template: say, arguments: {parameters: [{name: p, value: 9}, {name: q, value: "{{workflow.parameters.i}} {{workflow.parameters.f}} {{workflow.parameters.b}} {{workflow.parameters.s}} {{inputs.parameters.own}} {{inputs.parameters.none}}"}]}}]}
- name: say
  inputs: {parameters: [{name: p, enum: [9, 10]}, {name: q}]}
  outputs: {parameters: [{name: o, valueFrom: {path: /o, default: 4}}]}
  synchronization: {mutex: {name: only}}
  memoize: {key: "{{inputs.parameters.p}}", cache: {configMap: {name: values}}}
  metrics: {prometheus: [{name: values, help: h, histogram: {value: "2", buckets: [0.5, 2, "10"]}}]}
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}
  container: {image: a, command: [c]}
`
	nested := func(s, by string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+by) }
	e.submit("values", spec)
	e.create("workflowtemplates", "values", "spec:\n  "+nested(spec, "  "))
	e.create("cronworkflows", "values", "spec:\n  schedule: 0 0 1 1 *\n  suspend: true\n  workflowSpec:\n    "+nested(spec, "    "))
	w := e.until("values", inPhase(wf.WorkflowSucceeded))
	for _, n := range w.Status.Nodes {
		if n.DisplayName != "a" {
			continue
		}
		got := fmt.Sprint(*n.Inputs.Parameters[0].Value, "; ", *n.Inputs.Parameters[1].Value, "; ", *n.Outputs.Parameters[0].Value)
		if want := "9; 5 1.5 true 7 3 0; 4"; got != want {
			t.Errorf("inputs and outputs are %s, want %s", got, want)
		}
	}
}
