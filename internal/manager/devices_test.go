package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// withDevices creates a device class of the test, publishes devices of it on nodes of the cluster, and
// creates the claim template "one" for one device. It returns the class and the names of the nodes.
func (e *env) withDevices(perNode ...int) (class string, on []string) {
	e.Helper()
	class = e.ns + ".example.com"
	nodes, err := e.core.CoreV1().Nodes().List(e.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) < len(perNode) {
		e.Fatal(nodes, err)
	}
	api := e.core.ResourceV1()
	e.Cleanup(func() { _ = api.DeviceClasses().Delete(context.Background(), class, metav1.DeleteOptions{}) })
	e.apply(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + class + `}
spec: {selectors: [{cel: {expression: 'device.driver == "` + class + `"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: ` + class + `}}]}}}`)
	for i, n := range perNode {
		node := nodes.Items[i].Name
		on = append(on, node)
		var devices []string
		for k := range n {
			devices = append(devices, fmt.Sprintf("{name: gpu-%d}", k))
		}
		name := e.ns + "-" + node
		e.apply(fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %s}
spec: {driver: %s, nodeName: %s, pool: {name: %s, generation: 1, resourceSliceCount: 1}, devices: [%s]}`,
			name, class, node, node, strings.Join(devices, ", ")))
		e.Cleanup(func() { _ = api.ResourceSlices().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	return class, on
}

func (e *env) resourceClaims() []resourcev1.ResourceClaim {
	e.Helper()
	list, err := e.core.ResourceV1().ResourceClaims(e.ns).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// checkDevices checks that no device is allocated twice, and that every pod with a node has its
// claims, on its node.
func (e *env) checkDevices() {
	e.Helper()
	taken, reserved := map[string]string{}, map[string]string{}
	for _, c := range e.resourceClaims() {
		if c.Status.Allocation == nil {
			continue
		}
		for _, d := range c.Status.Allocation.Devices.Results {
			at := d.Pool + "/" + d.Device
			if other := taken[at]; other != "" {
				e.Errorf("device %s is allocated to %s and %s", at, other, c.Name)
			}
			taken[at] = c.Name
			for _, r := range c.Status.ReservedFor {
				reserved[string(r.UID)] = d.Pool
			}
		}
	}
	for _, p := range e.pods() {
		if len(p.Spec.ResourceClaims) > 0 && p.Spec.NodeName != "" && p.DeletionTimestamp == nil && p.Status.Phase != "Succeeded" && reserved[string(p.UID)] != p.Spec.NodeName {
			e.Errorf("pod %s is on %s, its devices are on %q", p.Name, p.Spec.NodeName, reserved[string(p.UID)])
		}
	}
}

// withClaims returns a Job whose pods request claims.
func withClaims(name string, replicas int, claim string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  minAvailable: %d
  tasks:
  - name: w
    replicas: %d
    template:
      spec:
        restartPolicy: Never
        resourceClaims: [{name: gpu, %s}]
        containers: [{name: c, image: x, resources: {claims: [{name: gpu}], requests: {cpu: 10m}}}]`, name, replicas, replicas, claim)
}

const fromTemplate = "resourceClaimTemplateName: one"

// TestDevicesInGangs runs jobs whose pods each get a device, from a claim template.
func TestDevicesInGangs(t *testing.T) {
	t.Parallel()
	e := start(t)
	_, on := e.withDevices(2, 1)

	// A gang that needs more devices than there are gets none.
	e.apply(withClaims("large", 4, fromTemplate))
	e.until("large", says(batch.JobScheduled, "Unschedulable"))
	e.eventually("the claims of all pods exist", func() error {
		if n := len(e.resourceClaims()); n != 4 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	e.onNode("large", "", 4)

	e.apply(withClaims("fits", 3, fromTemplate))
	e.until("fits", inPhase(batch.Running))
	e.checkDevices()
	count := map[string]int{}
	for _, p := range e.podsOf("fits") {
		count[p.Spec.NodeName]++
	}
	if count[on[0]] != 2 || count[on[1]] != 1 {
		t.Errorf("the pods are on %v", count)
	}
	for _, c := range e.resourceClaims() {
		if c.Status.Allocation != nil != strings.HasPrefix(c.Name, "fits-") {
			t.Errorf("claim %s: %s", c.Name, asJSON(c.Status))
		}
	}

	// Devices of a deleted job are free again.
	e.apply(withClaims("next", 2, fromTemplate))
	e.until("next", says(batch.JobScheduled, "Unschedulable"))
	if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "fits", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.until("next", inPhase(batch.Running))
	e.checkDevices()
}

// TestASharedClaim runs the pods of a gang, and a pod of another controller, with one claim that a user
// created: all of them are where its device is.
func TestASharedClaim(t *testing.T) {
	t.Parallel()
	e := start(t)
	class, on := e.withDevices(0, 0, 1)
	e.apply(withClaims("job", 3, "resourceClaimName: shared"))
	e.until("job", says(batch.JobScheduled, "Unschedulable"))
	e.apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: ` + class + `}}]}}`)
	e.until("job", inPhase(batch.Running))
	e.onNode("job", on[2], 3)
	e.apply(`
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  schedulerName: lockstep
  resourceClaims: [{name: gpu, resourceClaimName: shared}]
  containers: [{name: c, image: x, resources: {claims: [{name: gpu}]}}]`)
	e.Cleanup(func() { _ = e.core.CoreV1().Pods(e.ns).Delete(context.Background(), "alone", metav1.DeleteOptions{}) })
	e.eventually("the pod is bound", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "alone", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != on[2] {
			err = fmt.Errorf("it is on %q", p.Spec.NodeName)
		}
		return err
	})
	if c := e.resourceClaims(); len(c) != 1 || len(c[0].Status.ReservedFor) != 4 {
		t.Errorf("the claim is reserved for %s", asJSON(c[0].Status.ReservedFor))
	}
	e.checkDevices()
}

// TestDevicesOfWorkflows runs a workflow whose steps take turns with one device.
func TestDevicesOfWorkflows(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.withDevices(1)
	e.deletesWorkflows()
	e.apply(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: turns}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: a, template: step, withSequence: {count: "3"}}]]
  - name: step
    metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}
    resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
    container: {image: x, command: [x], resources: {claims: [{name: gpu}]}}`)
	e.says(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}, "turns", `"phase":"Succeeded"`)
}

// TestDevicesAreReleased has a claim allocated and reserved on a node that its pod cannot use, as after
// the node of a gang was lost: the claim is allocated anew.
func TestDevicesAreReleased(t *testing.T) {
	t.Parallel()
	e := start(t)
	class, on := e.withDevices(1, 1)
	e.apply(fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: moved, finalizers: [%s]}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  schedulerName: lockstep
  schedulingGates: [{name: example.com/wait}]
  nodeSelector: {kubernetes.io/hostname: %s}
  resourceClaims: [{name: gpu, resourceClaimName: moved}]
  containers: [{name: c, image: x, resources: {claims: [{name: gpu}]}}]`, resourcev1.Finalizer, class, on[1]))
	pods, claims := e.core.CoreV1().Pods(e.ns), e.core.ResourceV1().ResourceClaims(e.ns)
	e.Cleanup(func() { _ = pods.Delete(context.Background(), "alone", metav1.DeleteOptions{}) })
	pod, err := pods.Get(t.Context(), "alone", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status": {
	  "reservedFor": [{"resource": "pods", "name": "alone", "uid": %q}],
	  "allocation": {
	    "devices": {"results": [{"request": "gpu", "driver": %q, "pool": %q, "device": "gpu-0"}]},
	    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [%q]}]}]}}}}`,
		pod.UID, class, on[0], on[0])
	if _, err := claims.Patch(t.Context(), "moved", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Patch(t.Context(), "alone", types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the pod is bound", func() error {
		p, err := pods.Get(t.Context(), "alone", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != on[1] {
			err = fmt.Errorf("it is on %q: %s", p.Spec.NodeName, asJSON(p.Status.Conditions))
		}
		return err
	})
	e.checkDevices()
}

// TestSharesOfDevices runs a job that requests a share of a GPU, as device plugins advertise shares: as
// an extended resource of their nodes.
func TestSharesOfDevices(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: shares}
spec:
  minAvailable: 2
  tasks:
  - name: w
    replicas: 2
    template:
      spec:
        restartPolicy: Never
        containers: [{name: c, image: x, resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 1000}}}]`)
	j := e.until("shares", says(batch.JobScheduled, "NotEnoughResources"))
	if text := asJSON(j.Status); !strings.Contains(text, "volcano.sh/vgpu-") {
		t.Errorf("the status does not say what is missing: %s", text)
	}
	nodes, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := nodes.Items[3].Name
	advertise := func(ctx context.Context, amounts string) {
		patch := `{"status":{"capacity":` + amounts + `,"allocatable":` + amounts + `}}`
		if _, err := e.core.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Error(err)
		}
	}
	advertise(t.Context(), `{"volcano.sh/vgpu-number":"10","volcano.sh/vgpu-memory":"2000"}`)
	e.Cleanup(func() {
		advertise(context.Background(), `{"volcano.sh/vgpu-number":null,"volcano.sh/vgpu-memory":null}`)
	})
	e.until("shares", inPhase(batch.Running))
	e.onNode("shares", node, 2)
	e.until("shares", says(batch.JobSupported, batch.ReasonNotImplemented,
		"requests for volcano.sh/vgpu-number (counted per node; no device is chosen)"))
}
