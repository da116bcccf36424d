package podcontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

// Config configures a Controller. Informers, Writer and SchedulerNames are required.
type Config struct {
	Informers *informer.Set
	Writer    apiwriter.Writer
	// SchedulerNames are the scheduler names whose pods Lockstep schedules.
	SchedulerNames []string
	// Guard recovers from panics caused by one pod. With a nil Guard such panics end the process.
	Guard *panics.Guard
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Controller reports on pods that request CPUs.
type Controller struct {
	cfg  Config
	loop *controlloop.Loop[types.NamespacedName, told]
}

// told is what has been said of a pod.
type told struct {
	uid types.UID
	// event means that an event is recorded, and condition that the condition is written or being
	// written.
	event, condition bool
}

// New returns a Controller and registers its handlers with the informers, which must not have been
// started.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Writer == nil || len(cfg.SchedulerNames) == 0 {
		return nil, errors.New("podcontroller: informers, a writer and scheduler names are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Controller{cfg: cfg}
	c.loop = controlloop.New[types.NamespacedName, told](controlloop.Config[types.NamespacedName]{
		Name: "pinned-pods", Workers: 1, Turn: c.reconcile, Guard: cfg.Guard, Clock: cfg.Clock,
	})
	changed := func(p *corev1.Pod) {
		if request.Marked(p) {
			c.loop.Wake(informer.KeyOf(p))
		}
	}
	cfg.Informers.Pods.Follow(changed, changed)
	return c, nil
}

// Run reconciles until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

func (c *Controller) reconcile(key types.NamespacedName) {
	pod, found := c.cfg.Informers.Pods.Get(key.Namespace, key.Name)
	t := c.loop.Get(key)
	if !found || t != nil && t.uid != pod.UID {
		if c.loop.Drop(key); !found {
			return
		}
		t = nil
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	if t == nil {
		t = &told{uid: pod.UID}
		c.loop.Put(key, t)
	}
	c.loop.Deliver(key, pod.UID)
	if why := c.notChosen(pod); why != "" && !t.event && c.chosenHere() {
		t.event = true
		c.cfg.Writer.Event(pod, corev1.EventTypeWarning, "CPUsNotChosen", why)
	}
	if unread := request.Unread(pod); len(unread) > 0 && c.ours(pod) && !t.condition && !says(pod, unread) && !saidByJob(pod) {
		t.condition = true
		c.write(key, pod, unread)
	}
}

// saidByJob reports whether the condition Supported of the pod's Job says what is not read of the pod:
// that the topologyPolicy of a task has no effect.
func saidByJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, batchv1alpha1.GroupVersion.Group+"/") &&
		pod.Annotations[request.VolcanoNUMA] != ""
}

func (c *Controller) ours(pod *corev1.Pod) bool {
	return slices.Contains(c.cfg.SchedulerNames, pod.Spec.SchedulerName)
}

// chosenHere reports whether CPUs are chosen in this cluster at all: pods of a cluster without agents
// may ask another system.
func (c *Controller) chosenHere() bool { return len(c.cfg.Informers.NodeTopologies.List()) > 0 }

// notChosen returns why no CPUs are chosen for a pod that requests some, or "". Pods that name another
// scheduler are that scheduler's.
func (c *Controller) notChosen(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" || pod.Annotations[request.LockstepResult] != "" ||
		!request.Asks(pod) {
		return ""
	}
	asks := strings.Join(request.Marks(pod), ", ")
	switch {
	case !c.ours(pod) && pod.Spec.SchedulerName == corev1.DefaultSchedulerName:
		return fmt.Sprintf("the pod requests CPUs (%s) and names no scheduler: CPUs are chosen for pods with schedulerName %s, and for "+
			"pods of namespaces with the label %s=lockstep", asks, c.cfg.SchedulerNames[0], topologyv1alpha1.SchedulerLabel)
	case c.ours(pod) && pod.Spec.NodeName != "":
		return fmt.Sprintf("the pod requests CPUs (%s) and was created with spec.nodeName, so no scheduler has chosen any, and it runs on "+
			"the shared pool: select the node by spec.nodeSelector or an affinity", asks)
	}
	return ""
}

// conditionMax bounds the message of the condition, in bytes.
const conditionMax = 1024

func messageOf(unread []string) string {
	return clip.Text("without effect here: "+strings.Join(unread, ", "), conditionMax)
}

// says reports whether the pod's condition already says so.
func says(pod *corev1.Pod, unread []string) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == topologyv1alpha1.RequestRead && c.Message == messageOf(unread)
	})
}

// write writes the condition, as a patch that concerns no other.
func (c *Controller) write(key types.NamespacedName, pod *corev1.Pod, unread []string) {
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{
		Type: topologyv1alpha1.RequestRead, Status: corev1.ConditionFalse, Reason: "NotRead", Message: messageOf(unread),
		LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now()).Rfc3339Copy(),
	}}}})
	if err != nil {
		panic(err) // strings and times always marshal
	}
	about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
	c.cfg.Writer.Patch(apiwriter.Meta{Owner: "pod/" + key.String(), Reason: "pod-request-read", StatusOnly: true}, about,
		types.StrategicMergePatchType, data, func(_ apiwriter.Object, err error) {
			if err == nil || errors.Is(err, apiwriter.ErrStopped) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return
			}
			c.cfg.Log.Error("the condition of a pod cannot be written", "pod", key.String(), "error", err)
			c.loop.Post(key, pod.UID, func(t *told) { t.condition = false })
			c.loop.Retry(key)
		})
}
