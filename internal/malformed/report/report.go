package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	hypernode "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
)

// Config configures a Reporter. REST, Scheme and Writer are required.
type Config struct {
	REST   *rest.Config
	Scheme *runtime.Scheme
	Writer apiwriter.Writer
	Log    *slog.Logger
}

const (
	// readTimeout is the timeout of reading an object.
	readTimeout = 10 * time.Second
	// creator is the source of events.
	creator = "lockstep"
)

// Reporter reports malformed objects to their users.
type Reporter struct {
	cfg  Config
	loop *controlloop.Loop[key, struct{}]

	mu      sync.Mutex
	about   map[key]complaint // not reported yet
	clients map[schema.GroupVersion]rest.Interface
}

type key struct {
	gvk schema.GroupVersionKind
	types.NamespacedName
}

// complaint is the report about one object.
type complaint struct {
	object apiwriter.Object // with its metadata only
	text   string
	reason string // of the condition or event
	// asEvent means that the condition was refused and an event takes its place.
	asEvent bool
}

// condition says how a kind shows that an object is malformed.
type condition struct {
	kind      string
	status    metav1.ConditionStatus
	subtle    bool // the condition has neither reason nor time
	statusSub bool // the kind has a status subresource
}

var conditions = map[schema.GroupKind]condition{
	{Group: batch.GroupVersion.Group, Kind: "Job"}:           {kind: string(batch.JobValid), status: metav1.ConditionFalse, statusSub: true},
	{Group: batch.GroupVersion.Group, Kind: "CronJob"}:       {kind: batch.CronJobValid, status: metav1.ConditionFalse, statusSub: true},
	{Group: scheduling.GroupVersion.Group, Kind: "PodGroup"}: {kind: scheduling.ConditionValid, status: metav1.ConditionFalse, statusSub: true},
	{Group: scheduling.GroupVersion.Group, Kind: "Queue"}:    {kind: scheduling.ConditionValid, status: metav1.ConditionFalse, statusSub: true},
	{Group: hypernode.GroupVersion.Group, Kind: "HyperNode"}: {kind: hypernode.HyperNodeValid, status: metav1.ConditionFalse, statusSub: true},
	{Group: wf.GroupVersion.Group, Kind: "Workflow"}:         {kind: string(wf.ConditionSpecError), status: metav1.ConditionTrue, subtle: true},
	{Group: wf.GroupVersion.Group, Kind: "CronWorkflow"}:     {kind: string(wf.ConditionSpecError), status: metav1.ConditionTrue, subtle: true},
}

// New returns a Reporter, which reports nothing before Run.
func New(cfg Config) (*Reporter, error) {
	if cfg.REST == nil || cfg.Scheme == nil || cfg.Writer == nil {
		return nil, errors.New("report: a cluster, a scheme and a writer are required")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	r := &Reporter{cfg: cfg, about: map[key]complaint{}, clients: map[schema.GroupVersion]rest.Interface{}}
	r.loop = controlloop.New[key, struct{}](controlloop.Config[key]{Name: "malformed", Workers: 1, Turn: r.turn})
	return r, nil
}

// Tell queues the report that an object cannot be decoded, and why. It does not block.
func (r *Reporter) Tell(o runtime.Object, why *malformed.Error) {
	object, ok := o.(apiwriter.Object)
	if !ok {
		return
	}
	kinds, _, err := r.cfg.Scheme.ObjectKinds(o)
	if err != nil {
		return
	}
	k := key{kinds[0], types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}
	r.cfg.Log.Warn("an object cannot be worked on, and is left alone until it is changed", "about", k.gvk.Kind+" "+k.NamespacedName.String(),
		"version", object.GetResourceVersion(), "fault", why.Error())
	r.mu.Lock()
	r.about[k] = complaint{object: object, text: why.Error(), reason: why.Reason()}
	r.mu.Unlock()
	r.loop.Wake(k)
}

// Run writes reports until ctx is done.
func (r *Reporter) Run(ctx context.Context) { r.loop.Run(ctx) }

// turn writes the report about one object.
func (r *Reporter) turn(k key) {
	ctx := r.loop.Context()
	r.mu.Lock()
	c, found := r.about[k]
	r.mu.Unlock()
	if !found || ctx.Err() != nil {
		return
	}
	if err := r.say(ctx, k, c); err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("what is wrong with an object could not be written down; trying again", "kind", k.gvk.Kind, "object", k.NamespacedName, "error", err)
		r.loop.Retry(k)
		return
	}
	r.loop.Succeeded(k)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.about[k] == c { // otherwise there is a newer complaint
		delete(r.about, k)
	}
}

// say writes a complaint to the API server, unless the server already has it. It returns only
// errors of reading; errors of writing are logged.
func (r *Reporter) say(ctx context.Context, k key, c complaint) error {
	how, found := conditions[k.gvk.GroupKind()]
	if !found || c.asEvent {
		return r.event(ctx, k, c)
	}
	now, err := r.read(ctx, k.gvk, k.NamespacedName)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case now.Metadata.UID != c.object.GetUID() || now.Metadata.ResourceVersion != c.object.GetResourceVersion():
		return nil // the watch brings the current version
	}
	said, ops := how.patch(now.Status, c.reason, c.text, metav1.Now().Rfc3339Copy())
	switch {
	case said:
		return nil
	case ops == nil:
		return r.event(ctx, k, c)
	}
	data, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	m := apiwriter.Meta{Owner: "malformed/" + k.String(), Reason: "malformed", StatusOnly: how.statusSub}
	r.cfg.Writer.PatchVersion(m, c.object, false, data, func(_ apiwriter.Object, err error) {
		switch {
		case err == nil, errors.Is(err, apiwriter.ErrStopped), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		default:
			r.cfg.Log.Warn("a condition was refused; an event takes its place", "kind", k.gvk.Kind, "object", k.NamespacedName, "error", err)
			r.refused(k, c)
		}
	})
	return nil
}

// refused queues an event about an object whose condition was refused, unless there is a newer
// complaint.
func (r *Reporter) refused(k key, c complaint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, found := r.about[k]; found && now != c {
		return
	}
	c.asEvent = true
	r.about[k] = c
	r.loop.Wake(k)
}

// stored is the part of an object that is read.
type stored struct {
	Metadata struct {
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
	} `json:"metadata"`
	Status json.RawMessage `json:"status"`
}

func (r *Reporter) read(ctx context.Context, gvk schema.GroupVersionKind, name types.NamespacedName) (*stored, error) {
	client, err := r.client(gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	data, err := client.Get().NamespaceIfScoped(name.Namespace, name.Namespace != "").Resource(plural.Resource).Name(name.Name).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	out := &stored{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, name, err)
	}
	return out, nil
}

func (r *Reporter) client(gv schema.GroupVersion) (rest.Interface, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[gv]; c != nil {
		return c, nil
	}
	c, err := kubeclient.ForGroupVersion(r.cfg.REST, nil, gv, r.cfg.Scheme)
	if err == nil {
		r.clients[gv] = c
	}
	return c, err
}

// patch returns the operations that add the condition to a status. said is true if the status
// already has the condition with this text. ops is nil in that case, and if the status cannot have
// conditions.
func (c condition) patch(status json.RawMessage, reason, text string, now metav1.Time) (said bool, ops []apiwriter.PatchOp) {
	wanted := map[string]any{"type": c.kind, "status": c.status, "message": text}
	if !c.subtle {
		wanted["reason"], wanted["lastTransitionTime"] = reason, now
	}
	if len(status) == 0 || string(status) == "null" {
		return false, []apiwriter.PatchOp{{Op: "add", Path: "/status", Value: map[string]any{"conditions": []any{wanted}}}}
	}
	var has struct {
		Conditions []map[string]any `json:"conditions"`
	}
	if json.Unmarshal(status, &has) != nil {
		return false, nil
	}
	// The condition comes first, because some clients use the last condition of a Job as its phase.
	list := []any{wanted}
	for _, there := range has.Conditions {
		switch {
		case there["type"] != c.kind:
			list = append(list, there)
		case there["message"] == text && there["status"] == string(c.status):
			return true, nil
		}
	}
	return false, []apiwriter.PatchOp{{Op: "add", Path: "/status/conditions", Value: list}}
}

// event writes an event, unless the same event exists.
func (r *Reporter) event(ctx context.Context, k key, c complaint) error {
	namespace := cmp.Or(k.Namespace, metav1.NamespaceDefault)
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", k.gvk, c.object.GetUID(), c.text)
	name := fmt.Sprintf("%s.%x", k.Name, h.Sum64())
	_, err := r.read(ctx, corev1.SchemeGroupVersion.WithKind("Event"), types.NamespacedName{Namespace: namespace, Name: name})
	if !apierrors.IsNotFound(err) {
		return err
	}
	apiVersion, kind := k.gvk.ToAPIVersionAndKind()
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{apiwriter.CreatorAnnotation: creator}},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: apiVersion, Kind: kind, Namespace: k.Namespace, Name: k.Name, UID: c.object.GetUID(), ResourceVersion: c.object.GetResourceVersion(),
		},
		Type: corev1.EventTypeWarning, Reason: c.reason, Message: c.text, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: creator}, ReportingController: creator,
	}
	r.cfg.Writer.Create(apiwriter.Meta{Owner: "malformed/" + k.String(), Reason: "malformed", StartsWork: true}, event, func(_ apiwriter.Object, err error) {
		if err != nil && !errors.Is(err, apiwriter.ErrStopped) && !apierrors.IsAlreadyExists(err) {
			r.cfg.Log.Warn("an event was refused", "kind", kind, "object", k.NamespacedName, "error", err)
		}
	})
	return nil
}
