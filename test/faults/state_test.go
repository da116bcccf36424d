package faults

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

var (
	jobs         = batch.GroupVersion.WithResource("jobs")
	workflows    = wf.GroupVersion.WithResource("workflows")
	applications = oam.GroupVersion.WithResource("applications")
	trackers     = oam.GroupVersion.WithResource("resourcetrackers")
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	deployments  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// state is the end state of a load: sorted lines of "kind name: fact".
type state []string

// stateOf returns the state of a namespace. over reports whether every job, workflow and
// application there has ended.
func (w *world) stateOf(ns string) (s state, over bool, err error) {
	over = true
	add := func(format string, args ...any) {
		s = append(s, strings.ReplaceAll(fmt.Sprintf(format, args...), ns, "NS"))
	}
	each := func(r schema.GroupVersionResource, namespace string, f func(*unstructured.Unstructured)) {
		if err != nil {
			return
		}
		o := metav1.ListOptions{}
		if r == trackers {
			o.LabelSelector = oam.AppNamespaceLabel + "=" + ns
		}
		list, failed := w.dyn.Resource(r).Namespace(namespace).List(w.Context(), o)
		if failed != nil {
			err = failed
			return
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
	}
	each(jobs, ns, func(u *unstructured.Unstructured) {
		phase, _, _ := unstructured.NestedString(u.Object, "status", "state", "phase")
		over = over && slices.Contains([]string{"Completed", "Failed", "Aborted", "Terminated"}, phase)
		add("job %s: %s", u.GetName(), facts(u.Object["status"]))
	})
	each(workflows, ns, func(u *unstructured.Unstructured) {
		phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
		over = over && wf.WorkflowPhase(phase).Completed()
		status, _ := u.Object["status"].(map[string]any)
		nodes, _ := status["nodes"].(map[string]any)
		for id, node := range nodes {
			add("workflow %s node %s: %s", u.GetName(), id, facts(node))
		}
		delete(status, "nodes")
		delete(status, "storedTemplates")
		add("workflow %s: %s", u.GetName(), facts(status))
	})
	each(applications, ns, func(u *unstructured.Unstructured) {
		phase, _, _ := unstructured.NestedString(u.Object, "status", "status")
		over = over && phase == string(oam.PhaseRunning) && u.GetDeletionTimestamp() == nil
		status, _ := u.Object["status"].(map[string]any)
		steps, _, _ := unstructured.NestedSlice(status, "workflow", "steps")
		for _, step := range steps {
			delete(step.(map[string]any), "id") // random
		}
		if len(steps) > 0 {
			_ = unstructured.SetNestedSlice(status, steps, "workflow", "steps")
		}
		add("application %s: %s", u.GetName(), facts(status))
	})
	each(trackers, "", func(u *unstructured.Unstructured) {
		// The packed copies of the objects contain the namespace.
		unstructured.RemoveNestedField(u.Object, "spec", "compression")
		add("tracker %s: %s", u.GetName(), facts(u.Object["spec"]))
	})
	each(configMaps, ns, func(u *unstructured.Unstructured) {
		if u.GetName() != "kube-root-ca.crt" {
			add("configmap %s: %s", u.GetName(), facts(u.Object["data"]))
		}
	})
	each(secrets, ns, func(u *unstructured.Unstructured) { add("secret %s: %s", u.GetName(), facts(u.Object["data"])) })
	each(deployments, ns, func(u *unstructured.Unstructured) {
		ready, _, _ := unstructured.NestedInt64(u.Object, "status", "readyReplicas")
		add("deployment %s: %d ready", u.GetName(), ready)
	})
	if err != nil {
		return nil, false, err
	}
	pods, err := w.core.CoreV1().Pods(ns).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, false, err
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !ofReplicaSet(p) {
			over = over && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
			going := ""
			if p.DeletionTimestamp != nil {
				going = ", and is going"
			}
			add("pod %s: %s%s", p.Name, p.Status.Phase, going)
		}
	}
	slices.Sort(s)
	return s, over, nil
}

// passing lists fields whose values differ from run to run: times, durations, names that the server
// generates.
var passing = []string{"uid", "resourceVersion", "resourcesDuration", "estimatedDuration", "hostNodeName", "runningDuration",
	"conditions", "contextBackend", "creator", "generation", "observedGeneration", "controlledResources"}

// facts returns the part of a status that is the same in every run.
func facts(v any) string {
	data, err := json.Marshal(scrub(v))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func scrub(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			moment := strings.HasSuffix(k, "At") || strings.HasSuffix(k, "Time") || strings.HasSuffix(k, "Timestamp")
			if !moment && !slices.Contains(passing, k) {
				out[k] = scrub(x)
			}
		}
		return out
	case []any:
		var out []any
		for _, x := range v {
			out = append(out, scrub(x))
		}
		slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return out
	}
	return v
}

// differs returns the differences between a state and the wanted one, or "".
func (s state) differs(want state) string {
	var out []string
	for _, line := range s {
		if !slices.Contains(want, line) {
			out = append(out, "+ "+line)
		}
	}
	for _, line := range want {
		if !slices.Contains(s, line) {
			out = append(out, "- "+line)
		}
	}
	return strings.Join(out, "\n")
}
