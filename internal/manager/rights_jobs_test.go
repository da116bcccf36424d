package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestPodSecurityAppliesToThePodsOfJobsAndWorkflows checks that the manager, which creates these
// pods, is not exempt from admission.
func TestPodSecurityAppliesToThePodsOfJobsAndWorkflows(t *testing.T) {
	e := start(t)
	if _, err := e.core.CoreV1().Namespaces().Patch(t.Context(), e.ns, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	mallory := e.tenant("mallory", "edit")
	mallory.apply(`apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: privileged}
spec: {tasks: [{name: main, replicas: 1, template: {spec: {hostNetwork: true, containers: [{name: c, image: busybox, securityContext: {privileged: true}}]}}}]}
`)
	mallory.apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: privileged}
spec: {entrypoint: main, templates: [{name: main, container: {image: busybox, securityContext: {privileged: true}}}]}
`)
	e.says(jobs, "privileged", "violates PodSecurity")
	e.says(workflowResource, "privileged", "violates PodSecurity")
	if pods := e.pods(); len(pods) > 0 {
		t.Errorf("%d pods were made", len(pods))
	}
}

// TestCommandsActOnJobsOfTheirNamespace checks that a Command that names a job of another namespace
// by UID has no effect on the job.
func TestCommandsActOnJobsOfTheirNamespace(t *testing.T) {
	t.Parallel()
	e := start(t)
	other := newEnv(t, e.c)
	t.Cleanup(func() {
		// The garbage collector of a new cluster does not know Jobs for the first half minute.
		_ = e.dyn.Resource(jobs).Namespace(other.ns).Delete(context.Background(), "job", metav1.DeleteOptions{})
		_ = e.core.CoreV1().Pods(other.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		other.clean()
	})
	other.apply(oneJob)
	other.until("job", inPhase(batch.Running))
	mallory := e.tenant("mallory", "edit")
	mallory.apply(`apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: abort}
action: AbortJob
target: {apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: job, uid: ` + string(other.job("job").UID) + `}
`)
	e.eventually("the command is done with", func() error {
		_, err := e.dyn.Resource(commands).Namespace(e.ns).Get(t.Context(), "abort", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if j := other.job("job"); j.Status.State.Phase != batch.Running {
		t.Errorf("the other's job is %s", j.Status.State.Phase)
	}
}

// TestPluginsTakeNothingOver checks that objects for a job's plugins are created for the job. An
// existing object of the same name stays unchanged, and pods do not get it.
func TestPluginsTakeNothingOver(t *testing.T) {
	e := start(t)
	mallory := e.tenant("mallory", "edit")
	e.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: taken-ssh}\nstringData: {id_rsa: " + hiddenValue + "}")
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: taken-svc}\ndata: {a: b}")
	mallory.apply(`apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: taken}
spec:
  plugins: {ssh: [], svc: []}
  tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]
`)
	e.hides(e.says(jobs, "taken", "taken-s", "exists"))
	if got := e.podsOf("taken"); len(got) > 0 {
		t.Errorf("%d pods mount what is somebody else's", len(got))
	}
	secret, err := e.core.CoreV1().Secrets(e.ns).Get(t.Context(), "taken-ssh", metav1.GetOptions{})
	if err != nil || string(secret.Data["id_rsa"]) != hiddenValue || len(secret.OwnerReferences) > 0 {
		t.Errorf("the Secret is %v, error %v", secret, err)
	}
}

// TestQueuesAreOpenedAndClosedByThoseWhoMayChangeThem checks the rights for Commands about queues:
// a Command lives in a namespace, but a queue belongs to the cluster.
func TestQueuesAreOpenedAndClosedByThoseWhoMayChangeThem(t *testing.T) {
	e := start(t)
	e.apply("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q-" + e.ns + "}\nspec: {weight: 1}")
	t.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(context.Background(), "q-"+e.ns, metav1.DeleteOptions{}) })
	mallory := e.tenant("mallory", "edit")
	command := `apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: close-it}
action: CloseQueue
target: {apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, name: q-` + e.ns + `, uid: u}
`
	if err := mallory.try(command); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "queue") {
		t.Errorf("the command: %v; want that it is forbidden", err)
	}
	e.apply(command)
	e.eventually("the queue is closed by an administrator", func() error {
		q, err := e.dyn.Resource(queues).Get(t.Context(), "q-"+e.ns, metav1.GetOptions{})
		if state, _, _ := unstructured.NestedString(q.Object, "status", "state"); err == nil && state != "Closed" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}

// TestStatusesOfWorkflowsNameNothingOfOthers checks that the manager does not trust a workflow's
// status when it deletes the objects named there, because every user who may write the workflow can
// write its status.
func TestStatusesOfWorkflowsNameNothingOfOthers(t *testing.T) {
	e := start(t)
	claim := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: precious}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"
	e.apply(claim)
	e.apply("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: greedy}\nspec: {maxUnavailable: 0, selector: {matchLabels: {a: b}}}")
	e.tenant("mallory", "edit").apply(`apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: greedy}
spec:
  entrypoint: main
  volumeClaimGC: {strategy: OnWorkflowCompletion}
  podDisruptionBudget: {minAvailable: 1}
  volumeClaimTemplates: [{metadata: {name: own}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  shutdown: Terminate
  templates: [{name: main, container: {image: busybox}}]
status:
  persistentVolumeClaims: [{name: own, persistentVolumeClaim: {claimName: precious}}]
`)
	e.eventually("the workflow ends", func() error {
		w, err := e.dyn.Resource(workflowResource).Namespace(e.ns).Get(t.Context(), "greedy", metav1.GetOptions{})
		if phase, _, _ := unstructured.NestedString(w.Object, "status", "phase"); err == nil && phase != "Failed" && phase != "Error" {
			err = fmt.Errorf("it is %s", phase)
		}
		return err
	})
	// The writes that follow the end of a workflow go through one writer: a later write of the
	// manager shows that they are done.
	e.apply("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: later}\nspec: {tasks: [{name: main, replicas: 1, template: {metadata: {annotations: {lockstep.dev/sim-duration: 1s}}, spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}]}")
	e.says(jobs, "later", `"phase":"Completed"`)
	got, err := e.core.CoreV1().PersistentVolumeClaims(e.ns).Get(t.Context(), "precious", metav1.GetOptions{})
	if err != nil || got.DeletionTimestamp != nil {
		t.Errorf("the claim: %v, error %v", got.DeletionTimestamp, err)
	}
	if _, err := e.core.PolicyV1().PodDisruptionBudgets(e.ns).Get(t.Context(), "greedy", metav1.GetOptions{}); err != nil {
		t.Errorf("the disruption budget: %v", err)
	}
}
