package artifactgc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/pods"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// Config configures a Controller. REST, Informers and Writer are required.
type Config struct {
	REST      *rest.Config
	Informers *informer.Set
	Writer    apiwriter.Writer
	// Pods configures how pods are built.
	Pods pods.Options
	// Settings returns the cluster's configuration of workflows; nil: it has none.
	Settings func() *settings.Settings
	// ReadNodes reads a version of the nodes of a workflow that are in a database, or returns
	// compress.ErrNoNodes. nil: the artifacts of such workflows are not found.
	ReadNodes func(ctx context.Context, uid, version string) (wf.Nodes, error)
	// Guard recovers from panics that one workflow causes. If it is nil, a panic ends the process.
	Guard *panics.Guard
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

const (
	// workers is the number of workflows processed concurrently, not counting those that wait for a
	// read.
	workers = 4
	// podsMax is the number of pods of one workflow that delete concurrently.
	podsMax = 4
	// readTimeout bounds one read of a workflow.
	readTimeout = 10 * time.Second
	// readAgain is the delay before a failed read is repeated.
	readAgain = 2 * time.Second
	// refusedAgain is the first delay before a pod that the server refused, perhaps because of a
	// quota, is created again.
	refusedAgain = 5 * time.Second
)

// Controller deletes the artifacts of finished workflows.
type Controller struct {
	cfg    Config
	client rest.Interface
	loop   *controlloop.Loop[types.NamespacedName, turn]
}

// turn is the in-memory state of one workflow whose artifacts are being deleted.
type turn struct {
	// whole is the workflow as read from the server, nodes its unpacked nodes.
	whole *wf.Workflow
	nodes wf.Nodes
	// requested are the names of the pods whose create is in flight or was answered; refused is the
	// server's last refusal of a pod.
	requested map[string]bool
	refused   error
	creates   controlloop.Backoff // after a refused pod
	writing   bool                // a patch is in flight
	patches   controlloop.Backoff // after a refused patch
}

// New returns a Controller and registers its handlers with the informers, which must not have
// started.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("artifactgc: a cluster, informers and a writer are required")
	}
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.Default())
	if cfg.Settings == nil {
		none := &settings.Settings{}
		cfg.Settings = func() *settings.Settings { return none }
	}
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("artifactgc: %w", err)
	}
	c := &Controller{cfg: cfg, client: client}
	c.loop = controlloop.New[types.NamespacedName, turn](controlloop.Config[types.NamespacedName]{
		Name: "artifacts", Workers: workers, Turn: c.turn, Guard: cfg.Guard, Clock: cfg.Clock,
	})
	cfg.Informers.Workflows.Handle(informer.Handler[*wf.Workflow]{
		Added: c.consider, Updated: func(_, w *wf.Workflow) { c.consider(w) }, Deleted: c.consider,
		Malformed: func(w *wf.Workflow, _ *malformed.Error) {
			if c.stuck(w) {
				c.loop.Wake(informer.KeyOf(w))
			}
		},
	})
	cfg.Informers.Pods.Follow(c.podSeen, c.podGone)
	return c, nil
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

func (c *Controller) consider(w *wf.Workflow) {
	if key := informer.KeyOf(w); c.loop.Get(key) != nil || w.Guarded() && len(due(w)) > 0 && c.cfg.Settings().Selects(w.Labels) {
		c.loop.Wake(key)
	}
}

func keyOfPod(p *corev1.Pod) (key types.NamespacedName, ours bool) {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Labels[wf.LabelWorkflow]}, p.Labels[wf.LabelComponent] == wf.ComponentArtifactGC
}

func (c *Controller) podSeen(p *corev1.Pod) {
	if key, ours := keyOfPod(p); ours && ended(p) {
		c.loop.Wake(key)
	}
}

// podGone lets a deleted pod be created again if it is still needed.
func (c *Controller) podGone(p *corev1.Pod) {
	if key, ours := keyOfPod(p); ours {
		c.loop.Post(key, controlloop.Anyone, func(t *turn) { delete(t.requested, p.Name) })
	}
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// turn processes one workflow.
func (c *Controller) turn(key types.NamespacedName) {
	//   1. Stop if there is nothing to do.
	w, found := c.cfg.Informers.Workflows.Get(key.Namespace, key.Name)
	if !found {
		if bare, apart := c.cfg.Informers.Workflows.Apart(key.Namespace, key.Name); apart && c.stuck(bare) {
			c.letGo(key, bare, malformed.Of(bare).Error())
			return
		}
	}
	if !found || !w.Guarded() || len(due(w)) == 0 {
		c.loop.Drop(key)
		return
	}
	t := c.take(key, w)
	if t == nil {
		return
	}
	//   2. Read the whole workflow.
	if t.whole == nil || t.whole.ResourceVersion != w.ResourceVersion {
		if err := c.read(key, t); err != nil {
			if errors.As(err, new(*unreadable)) && w.DeletionTimestamp != nil {
				c.letGo(key, w, err.Error())
				return
			}
			if !apierrors.IsNotFound(err) && c.loop.Context().Err() == nil {
				c.cfg.Log.Warn("reading a workflow whose artifacts are to be deleted failed", "workflow", key, "error", err)
				c.loop.WakeAfter(key, readAgain)
			}
			return
		}
		if t.whole.UID != w.UID || informer.Older(t.whole.ResourceVersion, w.ResourceVersion) {
			c.loop.WakeAfter(key, readAgain)
			return
		}
	}
	w = t.whole
	strategies := due(w)
	if len(strategies) == 0 {
		return // the watch will show the same
	}
	//   3. Run the pods that delete, and collect their results.
	var result outcome
	list, err := pods.Collections(w, t.nodes, strategies, c.options(w))
	if err != nil {
		result.left, result.faults = 1, []string{err.Error()}
	}
	waiting := c.look(key, t, w, list, &result)
	if waiting {
		return
	}
	//   4. Write the outcome.
	c.conclude(key, t, w, strategies, &result)
}

// take returns the state of a workflow, or nil while a write about it is in flight or during the
// backoff after a refused write.
func (c *Controller) take(key types.NamespacedName, w *wf.Workflow) *turn {
	t := c.loop.Get(key)
	if t == nil {
		t = &turn{requested: map[string]bool{}, creates: controlloop.Backoff{Min: refusedAgain}}
		c.loop.Put(key, t)
	}
	c.loop.Deliver(key, w.UID)
	if t.writing {
		return nil // wait for the answer to the write, then for the new version
	}
	if left := t.patches.Left(c.cfg.Clock.Now()); left > 0 {
		c.loop.WakeAfter(key, left)
		return nil
	}
	return t
}

// stuck reports whether a workflow that cannot be decoded is being deleted and still has the
// artifact finalizer.
func (c *Controller) stuck(w *wf.Workflow) bool {
	return w.DeletionTimestamp != nil && w.Guarded() && c.cfg.Settings().Selects(w.Labels)
}

// unreadable reports that a workflow's nodes cannot be unpacked, so the locations of its artifacts
// are unknown.
type unreadable struct{ error }

// letGo removes the finalizer from a workflow whose artifacts cannot be found, and emits an event.
func (c *Controller) letGo(key types.NamespacedName, w *wf.Workflow, why string) {
	t := c.take(key, w)
	if t == nil {
		return
	}
	w = &wf.Workflow{ObjectMeta: *w.ObjectMeta.DeepCopy()}
	malformed.Unmark(w)
	c.patch(key, t, w, release(w), func() {
		c.cfg.Log.Warn("a workflow is let go with its artifacts, which are not deleted", "workflow", key, "reason", why)
		c.cfg.Writer.Event(w, corev1.EventTypeWarning, "ArtifactGCFailed", "the workflow is deleted and its artifacts stay: "+why)
	})
}

// read reads a whole workflow, and yields the worker to another workflow meanwhile.
func (c *Controller) read(key types.NamespacedName, t *turn) error {
	ctx, cancel := context.WithTimeout(c.loop.Context(), readTimeout)
	defer cancel()
	w := &wf.Workflow{}
	var err error
	c.loop.Yield(func() {
		err = c.client.Get().Namespace(key.Namespace).Resource("workflows").Name(key.Name).Do(ctx).Into(w)
	})
	if err != nil {
		return err
	}
	nodes, err := compress.Nodes(&w.Status)
	if errors.Is(err, compress.ErrInDatabase) && c.cfg.ReadNodes != nil {
		c.loop.Yield(func() { nodes, err = c.cfg.ReadNodes(ctx, string(w.UID), w.Status.OffloadNodeStatusVersion) })
		if err != nil && !errors.Is(err, compress.ErrNoNodes) {
			return err
		}
	}
	if err != nil {
		return &unreadable{err}
	}
	w.SetGroupVersionKind(wf.GroupVersion.WithKind("Workflow"))
	t.whole, t.nodes = w, nodes
	return nil
}

// options returns the options for a workflow's pods, with the repository recorded in its status.
func (c *Controller) options(w *wf.Workflow) pods.Options {
	options := c.cfg.Settings().Options(c.cfg.Pods)
	if ref := w.Status.ArtifactRepositoryRef; ref != nil && ref.ArtifactRepository != nil {
		options.Repository = &pods.Repository{Location: *ref.ArtifactRepository}
	}
	return options
}

// look creates the missing pods and takes in the results of finished pods. It reports whether some
// pods have not finished.
func (c *Controller) look(key types.NamespacedName, t *turn, w *wf.Workflow, list []pods.Collection, result *outcome) (waiting bool) {
	if t.refused != nil {
		if wait := t.creates.Left(c.cfg.Clock.Now()); wait > 0 {
			c.loop.WakeAfter(key, wait)
		} else {
			t.refused = nil
		}
	}
	running := 0
	for i := range list {
		pod, found := c.cfg.Informers.Pods.Get(key.Namespace, list[i].Pod.Name)
		switch {
		case found && ended(pod):
			result.take(&list[i], pod)
		case found, t.requested[list[i].Pod.Name]:
			running++
		}
	}
	for i := range list {
		name := list[i].Pod.Name
		if _, found := c.cfg.Informers.Pods.Get(key.Namespace, name); found || t.requested[name] || running >= podsMax || t.refused != nil {
			continue
		}
		running++
		c.create(key, t, w, list[i].Pod)
	}
	if t.refused != nil && running == 0 {
		result.left++
		result.faults = append(result.faults, t.refused.Error())
		return false
	}
	return running > 0
}

func (c *Controller) create(key types.NamespacedName, t *turn, w *wf.Workflow, pod *corev1.Pod) {
	t.requested[pod.Name] = true
	pod.Annotations[apiwriter.CreatorAnnotation] = string(w.UID)
	c.cfg.Writer.Create(apiwriter.Meta{Owner: ownerKey(key), Reason: "artifact-gc-pod"}, pod, func(_ apiwriter.Object, err error) {
		if err == nil || errors.Is(err, apiwriter.ErrStopped) {
			return
		}
		c.loop.Post(key, w.UID, func(t *turn) {
			delete(t.requested, pod.Name)
			t.refused = err
			c.cfg.Log.Warn("a pod that deletes artifacts was refused", "workflow", key, "pod", pod.Name, "error", err)
			now := c.cfg.Clock.Now()
			t.creates.Failed(now)
			c.loop.WakeAfter(key, t.creates.Left(now))
		})
	})
}

// conclude writes the outcome, and removes the finalizer from a workflow that is to be deleted.
func (c *Controller) conclude(key types.NamespacedName, t *turn, w *wf.Workflow, strategies []string, result *outcome) {
	deleting := w.DeletionTimestamp != nil
	if deleting && (len(result.faults) == 0 || forced(w) || namespaceEnds(t.refused)) {
		if len(result.faults) > 0 {
			c.cfg.Writer.Event(w, corev1.EventTypeWarning, "ArtifactsLeft", result.message())
		}
		c.patch(key, t, w, release(w), func() { c.deletePods(key, w, result) })
		return
	}
	ops, err := record(w, t.nodes, strategies, result)
	if err != nil {
		c.cfg.Log.Error("recording the deletion of artifacts failed", "workflow", key, "error", err)
		return
	}
	if t.refused != nil { // strategies are not carried out while a pod is refused
		ops = slices.DeleteFunc(ops, func(o apiwriter.PatchOp) bool { return o.Path == "/status/artifactGCStatus" })
	}
	if len(ops) == 0 {
		return
	}
	if len(result.faults) > 0 {
		c.cfg.Writer.Event(w, corev1.EventTypeWarning, "ArtifactGCFailed", result.message())
	}
	c.patch(key, t, w, ops, func() {
		if len(result.faults) == 0 {
			c.deletePods(key, w, result)
		}
	})
}

// namespaceEnds reports whether a pod was refused because its namespace is being deleted: then no
// pod can be created any more.
func namespaceEnds(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (c *Controller) patch(key types.NamespacedName, t *turn, w *wf.Workflow, ops []apiwriter.PatchOp, then func()) {
	data, err := json.Marshal(ops)
	if err != nil {
		c.cfg.Log.Error("recording the deletion of artifacts failed", "workflow", key, "error", err)
		return
	}
	t.writing = true
	t.whole = nil // read again if there is more to do
	c.cfg.Writer.PatchVersion(apiwriter.Meta{Owner: ownerKey(key), Reason: "artifact-gc-status"}, w, true, data, func(_ apiwriter.Object, err error) {
		if err == nil {
			then()
		} else if !errors.Is(err, apiwriter.ErrStopped) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			c.cfg.Log.Warn("recording the deletion of artifacts failed", "workflow", key, "error", err)
		}
		c.loop.Post(key, w.UID, func(t *turn) {
			t.writing = false
			// After a conflict the workflow is read again, which shows the change.
			if err != nil && !apierrors.IsConflict(err) {
				t.patches.Failed(c.cfg.Clock.Now())
			}
		})
	})
}

// deletePods deletes the finished pods of result.
func (c *Controller) deletePods(key types.NamespacedName, w *wf.Workflow, result *outcome) {
	for _, name := range result.pods {
		c.cfg.Writer.Delete(apiwriter.Meta{Owner: ownerKey(key), Reason: "artifact-gc-pod"},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}, apiwriter.DeleteOptions{}, nil)
	}
}

func ownerKey(key types.NamespacedName) string { return "workflow/" + key.String() }
