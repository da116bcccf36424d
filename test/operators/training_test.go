package operators

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	deleted     = metav1.DeleteOptions{}
	pytorchJobs = schema.GroupVersionResource{Group: "kubeflow.org", Version: "v1", Resource: "pytorchjobs"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

const trainingPod = `{containers: [{name: pytorch, image: "pytorch/pytorch:2.4.0", resources: {requests: {cpu: "6", memory: 2Gi}}}]}`

// pytorchJob returns a PyTorchJob of a master and three workers, each of which takes most of a node.
func (e *env) pytorchJob(name string) string {
	return fmt.Sprintf(`
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: %[1]s}
spec:
  runPolicy:
    cleanPodPolicy: None
    schedulingPolicy: {queue: %[2]s-q, priorityClass: %[2]s-q}
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: OnFailure, template: {spec: %[3]s}}
    Worker: {replicas: 3, restartPolicy: OnFailure, template: {spec: %[3]s}}`, name, e.ns, trainingPod)
}

func TestTrainingOperator(t *testing.T) {
	e := start(t, "training-operator")
	e.run("training-operator", "--gang-scheduler-name=volcano", "--enable-scheme=pytorchjob", "--namespace="+e.ns)
	e.apply(pytorchJobs, e.pytorchJob("first"))
	e.untilPods("first-", 4, 4)
}
