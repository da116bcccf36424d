package workflows

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/simnode"
)

// Shape is the form of every workflow of a load: hello, chain-N, fanout-N or dag-N.
type Shape struct {
	Kind string
	Pods int
}

// maxPods bounds the pods of one workflow.
const maxPods = 10_000

// dagWidth is the number of tasks in a layer of dag-N; each task depends on two tasks of the layer
// before.
const dagWidth = 10

func (s Shape) String() string {
	if s.Kind == "hello" {
		return s.Kind
	}
	return fmt.Sprintf("%s-%d", s.Kind, s.Pods)
}

// ParseShape parses hello, chain-5, fanout-1000, dag-200.
func ParseShape(text string) (Shape, error) {
	if text == "hello" {
		return Shape{"hello", 1}, nil
	}
	kind, number, _ := strings.Cut(text, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxPods || kind != "chain" && kind != "fanout" && kind != "dag" {
		return Shape{}, fmt.Errorf("shape %q: want hello, chain-N, fanout-N or dag-N, with N between 1 and %d", text, maxPods)
	}
	return Shape{kind, n}, nil
}

// Workflow returns a workflow of the shape whose pods run for podTime on simulated nodes.
func (s Shape) Workflow(namespace, name string, podTime time.Duration, podGC string) *wf.Workflow {
	w := &wf.Workflow{
		TypeMeta:   metav1.TypeMeta{APIVersion: wf.GroupVersion.String(), Kind: "Workflow"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: wf.WorkflowSpec{
			Entrypoint:  "main",
			PodMetadata: &wf.Metadata{Annotations: map[string]string{simnode.AnnotationDuration: podTime.String()}},
		},
	}
	if podGC != "" {
		w.Spec.PodGC = &wf.PodGC{Strategy: podGC, DeleteDelayDuration: "0s"}
	}
	leaf := wf.Template{Name: "leaf", Container: &corev1.Container{
		Image: "registry.k8s.io/pause:3.10", Command: []string{"/pause"},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}},
	}}
	main := wf.Template{Name: "main"}
	switch s.Kind {
	case "hello":
		leaf.Name = "main"
		w.Spec.Templates = []wf.Template{leaf}
		return w
	case "chain":
		for i := range s.Pods {
			main.Steps = append(main.Steps, wf.ParallelSteps{Steps: []wf.WorkflowStep{{Name: fmt.Sprintf("s%d", i), Template: "leaf"}}})
		}
	case "fanout":
		group := wf.ParallelSteps{Steps: make([]wf.WorkflowStep, s.Pods)}
		for i := range group.Steps {
			group.Steps[i] = wf.WorkflowStep{Name: fmt.Sprintf("s%d", i), Template: "leaf"}
		}
		main.Steps = []wf.ParallelSteps{group}
	case "dag":
		main.DAG = &wf.DAGTemplate{}
		task := func(i int) string { return fmt.Sprintf("t%d", i) }
		for i := range s.Pods {
			t := wf.DAGTask{Name: task(i), Template: "leaf"}
			if layer := i / dagWidth; layer > 0 {
				above := (layer - 1) * dagWidth
				t.Dependencies = []string{task(above + i%dagWidth), task(above + (i+1)%dagWidth)}
			}
			main.DAG.Tasks = append(main.DAG.Tasks, t)
		}
	}
	w.Spec.Templates = []wf.Template{main, leaf}
	return w
}
