package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// lateClass creates a storage class of the test whose claims are bound when their first pod has a
// node, and returns its name.
func (e *env) lateClass(provisioner string) string {
	e.Helper()
	name := e.ns + "-late"
	e.apply("apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: " + name + "}\nprovisioner: " + provisioner +
		"\nvolumeBindingMode: WaitForFirstConsumer\nreclaimPolicy: Delete")
	e.Cleanup(func() {
		_ = e.core.StorageV1().StorageClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return name
}

// localVolume creates a volume that can be used on one node.
func (e *env) localVolume(name, class, node, more string) {
	e.Helper()
	e.apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  storageClassName: %s
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  local: {path: /disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]}}%s`,
		name, class, node, more))
	e.Cleanup(func() {
		_ = e.core.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// withClaim returns a Job with a claim of its own.
func withClaim(name, class string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  volumes: [{mountPath: /data, volumeClaim: {storageClassName: %s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  tasks:
  - name: w
    replicas: %d
    template: {spec: {restartPolicy: Never, containers: [{name: c, image: x, resources: {requests: {cpu: 10m}}}]}}`, name, class, replicas)
}

// onNode checks that all pods of a job are on a node.
func (e *env) onNode(job, node string, pods int) {
	e.Helper()
	list := e.podsOf(job)
	if len(list) != pods {
		e.Errorf("%s has %d pods, want %d", job, len(list), pods)
	}
	for _, p := range list {
		if p.Spec.NodeName != node {
			e.Errorf("pod %s is on %s, and its volume on %s", p.Name, p.Spec.NodeName, node)
		}
	}
}

// TestVolumesOfClassesThatWaitForAPod runs jobs with claims of a class with WaitForFirstConsumer, whose
// volumes exist on two nodes.
func TestVolumesOfClassesThatWaitForAPod(t *testing.T) {
	t.Parallel()
	e := start(t)
	class := e.lateClass("kubernetes.io/no-provisioner")
	nodes, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) < 3 {
		t.Fatal(nodes, err)
	}
	e.localVolume(e.ns+"-v0", class, nodes.Items[1].Name, "")
	e.localVolume(e.ns+"-v1", class, nodes.Items[2].Name, "")

	// Two jobs get a volume each, the third waits and says why.
	for _, name := range []string{"a", "b"} {
		e.apply(withClaim(name, class, 2))
	}
	at := map[string]string{}
	for _, name := range []string{"a", "b"} {
		e.until(name, inPhase(batch.Running))
		at[name] = e.podsOf(name)[0].Spec.NodeName
		e.onNode(name, at[name], 2)
	}
	if at["a"] == at["b"] || at["a"] != nodes.Items[1].Name && at["a"] != nodes.Items[2].Name {
		t.Errorf("the jobs are on %v, the volumes on %s and %s", at, nodes.Items[1].Name, nodes.Items[2].Name)
	}
	e.apply(withClaim("c", class, 2))
	e.until("c", says(batch.JobScheduled, "Unschedulable"))

	// A volume that an administrator adds is taken at once.
	e.localVolume(e.ns+"-v2", class, nodes.Items[0].Name, "")
	e.until("c", inPhase(batch.Running))
	e.onNode("c", nodes.Items[0].Name, 2)
}

// TestVolumesAreProvisionedForTheChosenNode runs a job and a workflow whose volumes are provisioned.
// The test is the provisioner.
func TestVolumesAreProvisionedForTheChosenNode(t *testing.T) {
	t.Parallel()
	e := start(t)
	class := e.lateClass("example.com/disks")
	claims := e.core.CoreV1().PersistentVolumeClaims(e.ns)
	// asked returns the claim for which a node has been chosen.
	asked := func(owner string) (claim corev1.PersistentVolumeClaim) {
		t.Helper()
		e.eventually("a node is chosen for the claim of "+owner, func() error {
			list, err := claims.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, c := range list.Items {
				if o := metav1.GetControllerOf(&c); o != nil && o.Name == owner && c.Annotations[selectedNode] != "" {
					claim = c
					return nil
				}
			}
			return fmt.Errorf("of %d claims none", len(list.Items))
		})
		return claim
	}
	provision := func(c *corev1.PersistentVolumeClaim, node string) {
		t.Helper()
		e.localVolume(e.ns+"-"+c.Name, class, node,
			fmt.Sprintf("\n  claimRef: {namespace: %s, name: %s, uid: %s}", c.Namespace, c.Name, c.UID))
	}

	e.apply(withClaim("job", class, 3))
	c := asked("job")
	j := e.until("job", says(batch.JobScheduled, "WaitingForVolumes"))
	if text := asJSON(j.Status); !strings.Contains(text, "waits for the volumes or devices of its claims: "+c.Name) {
		t.Errorf("the status is %s", text)
	}
	if n := len(e.podsOf("job")); n != 0 {
		t.Errorf("%d pods exist before their volume", n)
	}
	// A provisioner that cannot make a volume for the node takes the annotation away; a node is chosen
	// again.
	drop := []byte(`{"metadata":{"annotations":{"` + selectedNode + `":null}}}`)
	if _, err := claims.Patch(t.Context(), c.Name, types.MergePatchType, drop, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c = asked("job")
	provision(&c, c.Annotations[selectedNode])
	e.until("job", inPhase(batch.Running))
	e.onNode("job", c.Annotations[selectedNode], 3)

	// A workflow's steps share a volume.
	e.deletesWorkflows()
	e.apply(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: build}
spec:
  entrypoint: main
  volumeClaimTemplates: [{metadata: {name: work}, spec: {storageClassName: ` + class + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  templates:
  - name: main
    steps: [[{name: a, template: step}], [{name: b, template: step}]]
  - name: step
    metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}
    container: {image: x, command: [x], volumeMounts: [{name: work, mountPath: /work}]}`)
	c = asked("build")
	workflows := schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
	e.says(workflows, "build", "WaitingForVolumes")
	provision(&c, c.Annotations[selectedNode])
	e.says(workflows, "build", `"phase":"Succeeded"`)
	e.eventually("the claim is deleted with the workflow", func() error {
		if left, err := claims.Get(t.Context(), c.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) && (left == nil || left.DeletionTimestamp == nil) {
			return fmt.Errorf("it exists: %w", err)
		}
		return nil
	})
}

// TestEphemeralVolumes runs a job, a workflow and a pod with generic ephemeral volumes, whose claims
// kube-controller-manager creates once the pods exist.
func TestEphemeralVolumes(t *testing.T) {
	t.Parallel()
	e := start(t)
	class := e.lateClass("kubernetes.io/no-provisioner")
	nodes, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) < 3 {
		t.Fatal(nodes, err)
	}
	at := func(i int) string { return nodes.Items[i].Name }
	scratch := `volumes: [{name: scratch, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: ` + class +
		`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]`

	// There is a volume for one pod of the gang: none is bound, and nothing is chosen.
	e.localVolume(e.ns+"-v0", class, at(1), "")
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  tasks:
  - name: w
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        containers: [{name: c, image: x, volumeMounts: [{name: scratch, mountPath: /scratch}], resources: {requests: {cpu: 10m}}}]
        ` + scratch)
	e.until("gang", says(batch.JobScheduled, "Unschedulable"))
	e.eventually("both claims exist", func() error {
		for _, name := range []string{"gang-w-0-scratch", "gang-w-1-scratch"} {
			if _, err := e.core.CoreV1().PersistentVolumeClaims(e.ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	e.onNode("gang", "", 2)
	if v, err := e.core.CoreV1().PersistentVolumes().Get(t.Context(), e.ns+"-v0", metav1.GetOptions{}); err != nil || v.Spec.ClaimRef != nil {
		t.Errorf("half of a gang took volume %v: %v", v.Spec.ClaimRef, err)
	}
	e.localVolume(e.ns+"-v1", class, at(2), "")
	e.until("gang", inPhase(batch.Running))
	on := map[string]bool{}
	for _, p := range e.podsOf("gang") {
		on[p.Spec.NodeName] = true
	}
	if !on[at(1)] || !on[at(2)] {
		t.Errorf("the pods are on %v, their volumes on %s and %s", on, at(1), at(2))
	}

	e.localVolume(e.ns+"-v2", class, at(0), "")
	e.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: alone}\nspec:\n  schedulerName: lockstep\n  containers: [{name: c, image: x}]\n  " + scratch)
	e.Cleanup(func() { _ = e.core.CoreV1().Pods(e.ns).Delete(context.Background(), "alone", metav1.DeleteOptions{}) })
	e.eventually("the pod is bound", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "alone", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != at(0) {
			err = fmt.Errorf("it is on %q", p.Spec.NodeName)
		}
		return err
	})

	e.deletesWorkflows()
	e.localVolume(e.ns+"-v3", class, at(1), "")
	e.apply(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: flow}
spec:
  entrypoint: main
  ` + scratch + `
  templates:
  - name: main
    metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}
    container: {image: x, command: [x], volumeMounts: [{name: scratch, mountPath: /scratch}]}`)
	e.says(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}, "flow", `"phase":"Succeeded"`)
}
