package controller

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// endInjected ends a pod in which only injected containers still run: it sets a deadline that is
// over, and an annotation that says so. The kubelet then ends the containers as at any end of a pod,
// with SIGTERM and the pod's grace period, and the pod and its logs stay. This needs no right to
// execute commands in pods, and no program in the containers.
func (c *Controller) endInjected(r *record, np *nodePod, p *corev1.Pod, left []string) {
	if np.ending {
		return
	}
	np.ending = true
	patch, _ := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID, "annotations": map[string]string{wf.AnnotationEnding: strings.Join(left, ",")}},
		"spec":     map[string]any{"activeDeadlineSeconds": 1},
	})
	key, uid, node, pod := r.key, r.uid, np.nodeID, p.UID
	c.Writer.Patch(apiwriter.Meta{Owner: ownerKey(key), Reason: "end-injected-containers"}, p, types.MergePatchType, patch,
		func(_ apiwriter.Object, err error) {
			if err == nil || apierrors.IsNotFound(err) {
				return
			}
			c.Log.Warn("ending injected containers failed", "workflow", key, "pod", p.Name, "containers", left, "error", err)
			c.loop.Post(key, uid, func(r *record) {
				now := r.nodePods[node]
				if now == nil || now.uid() != pod {
					return
				}
				now.ending = false // the next change of the pod, or of the watch, tries again
				r.events = append(r.events, engine.PodState{
					NodeID: node, Phase: corev1.PodRunning,
					Message: "containers " + strings.Join(left, ", ") + " run on, and could not be ended: " + plain(err),
				})
			})
		})
}
