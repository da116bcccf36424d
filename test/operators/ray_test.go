package operators

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var rayClusters = schema.GroupVersionResource{Group: "ray.io", Version: "v1", Resource: "rayclusters"}

// rayCluster returns a RayCluster of a head and three workers, each of which takes most of a node.
func (e *env) rayCluster(name string) string {
	const pod = `{containers: [{name: ray, image: "rayproject/ray:2.46.0", resources: {requests: {cpu: "6", memory: 2Gi}, limits: {cpu: "6", memory: 2Gi}}}]}`
	return fmt.Sprintf(`
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: %[1]s
  labels: {volcano.sh/queue-name: %[2]s-q, ray.io/priority-class-name: %[2]s-q}
spec:
  rayVersion: 2.46.0
  headGroupSpec:
    rayStartParams: {}
    template: {spec: %[3]s}
  workerGroupSpecs:
  - groupName: workers
    replicas: 3
    minReplicas: 3
    maxReplicas: 5
    rayStartParams: {}
    template: {spec: %[3]s}`, name, e.ns, pod)
}

func TestKubeRay(t *testing.T) {
	e := start(t, "kuberay")
	e.run("kuberay", "--batch-scheduler=volcano", "--enable-leader-election=false", "--watch-namespace="+e.ns)

	// 1. Two clusters, of which one fits.
	e.apply(rayClusters, e.rayCluster("first"))
	e.untilPods("first-", 4, 4)
	e.says(podGroups, "ray-first-pg", `"phase":"Running"`, `"minMember":4`, `"queue":"`+e.ns+`-q"`, `"cpu":"24"`, `"priorityClassName":"`+e.ns+`-q"`)
	e.says(rayClusters, "first", `"state":"ready"`)
	e.apply(rayClusters, e.rayCluster("second"))
	e.says(podGroups, "ray-second-pg", `"reason":"NotEnoughResources"`)
	e.untilPods("second-", 4, 0)

	// 2. The second one gets the nodes of the first.
	if err := e.of(rayClusters).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.untilPods("second-", 4, 4)
	e.says(podGroups, "ray-second-pg", `"phase":"Running"`)

	// 3. A worker that does not fit waits, and the others stay. Then the cluster becomes smaller.
	scale := `{"spec":{"workerGroupSpecs":[{"groupName":"workers","replicas":%d,"minReplicas":%[1]d,"maxReplicas":5,"rayStartParams":{},` +
		`"template":{"spec":{"containers":[{"name":"ray","image":"rayproject/ray:2.46.0","resources":{"requests":{"cpu":"6","memory":"2Gi"},"limits":{"cpu":"6","memory":"2Gi"}}}]}}}]}}`
	e.patch(rayClusters, "second", fmt.Sprintf(scale, 4))
	e.untilPods("second-", 5, 4)
	e.patch(rayClusters, "second", fmt.Sprintf(scale, 2))
	e.untilPods("second-", 3, 3)
	e.down(rayClusters, "second")
}
