package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// kindsSettle are the times between discoveries after something that changes the kinds: an API server
// serves a kind shortly after its CustomResourceDefinition says so.
var kindsSettle = []time.Duration{50 * time.Millisecond, 250 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second}

// ServedKinds keeps the list of the kinds that the local API server serves in the ConfigMap
// config.ServedKinds, which is the parameter of an admission policy. Where that ConfigMap does not
// exist, it reads nothing and writes nothing.
type ServedKinds struct {
	kinds  *kinds
	writer apiwriter.Writer
	owns   func(key string) bool
	clock  clock.Clock
	log    *slog.Logger
	list   *informer.Informer[*corev1.ConfigMap]
	// sources are the objects of which a change may change the kinds.
	sources []*informer.Informer[*metav1.PartialObjectMetadata]
	changed chan struct{} // has an element if kinds may have changed
}

// NewServedKinds returns the ServedKinds of the local cluster. owns reports whether this manager writes
// the ConfigMap; nil means that it does.
func NewServedKinds(ts *Targets, owns func(key string) bool, clock clock.Clock) (*ServedKinds, error) {
	local := ts.Local
	core, err := kubeclient.ForGroupVersion(kubeclient.ForWatch(local.rest), nil, corev1.SchemeGroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	s := &ServedKinds{
		kinds: local.Kinds, writer: local.Writer, owns: owns, clock: clock, log: ts.cfg.Log, changed: make(chan struct{}, 1),
		list: informer.New(core, "configmaps", informer.Options[*corev1.ConfigMap]{
			Namespace: oam.SystemNamespace, Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, config.ServedKindsName).String(),
		}),
	}
	s.list.Handle(informer.Handler[*corev1.ConfigMap]{
		Added: func(*corev1.ConfigMap) { s.Check() },
		Updated: func(_, cm *corev1.ConfigMap) {
			if d := s.kinds.known(); d == nil || !maps.Equal(cm.Data, listed(d)) {
				s.Check()
			}
		},
	})
	for _, of := range []schema.GroupVersionResource{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	} {
		meta, err := kubeclient.Metadata(kubeclient.ForWatch(local.rest), of.GroupVersion())
		if err != nil {
			return nil, err
		}
		source := informer.New(meta, of.Resource, informer.Options[*metav1.PartialObjectMetadata]{})
		source.Follow(func(*metav1.PartialObjectMetadata) { s.Check() }, func(*metav1.PartialObjectMetadata) { s.Check() })
		s.sources = append(s.sources, source)
	}
	return s, nil
}

// Check makes Run compare the list with the kinds that are served.
func (s *ServedKinds) Check() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run keeps the list until ctx is done.
func (s *ServedKinds) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.list.Run(ctx) })
	follow := sync.OnceFunc(func() {
		for _, source := range s.sources {
			running.Go(func() { source.Run(ctx) })
		}
	})
	var backoff controlloop.Backoff
	var due <-chan time.Time
	settled := len(kindsSettle) // the number of kindsSettle that have passed
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			if settled > 0 || due == nil {
				due, settled = s.clock.After(kindsSettle[0]), 0
			}
			continue
		case <-due:
		}
		due = nil
		there, ok := s.list.Get(oam.SystemNamespace, config.ServedKindsName)
		if !ok || s.owns != nil && !s.owns(oam.SystemNamespace+"/"+config.ServedKindsName) {
			continue // when either changes, Check is called
		}
		follow()
		if err := s.write(ctx, there); err != nil {
			s.log.Warn("the list of served kinds is out of date: definitions may be refused that name a new kind", "configMap", config.ServedKindsName, "error", err)
			backoff.Failed(s.clock.Now())
			due, settled = s.clock.After(backoff.Left(s.clock.Now())), 1
			continue
		}
		backoff.Succeeded()
		if settled++; settled < len(kindsSettle) {
			due = s.clock.After(kindsSettle[settled])
		}
	}
}

// write asks the API server for its kinds, and writes the list if it differs.
func (s *ServedKinds) write(ctx context.Context, there *corev1.ConfigMap) error {
	d, err := s.kinds.discover()
	if err != nil {
		return err
	}
	want := listed(d)
	if maps.Equal(there.Data, want) {
		return nil
	}
	data, err := json.Marshal([]apiwriter.PatchOp{{Op: "add", Path: "/data", Value: want}})
	if err != nil {
		return fmt.Errorf("the list of served kinds: %w", err)
	}
	done := make(chan error, 1)
	s.writer.Patch(apiwriter.Meta{Owner: "served-kinds", Reason: "served-kinds"}, there, types.JSONPatchType, data,
		func(_ apiwriter.Object, err error) { done <- err })
	select {
	case <-ctx.Done():
		return nil
	case err := <-done:
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // the watch shows it
		}
		return err
	}
}

// listed returns the data of the ConfigMap: the kinds, and the versions of groups whose kinds the API
// server could not list.
func listed(d *discovered) map[string]string {
	out := map[string]string{"kinds": strings.Join(d.apis, "\n")}
	if d.failed != nil {
		var unknown []string
		for gv := range d.failed.Groups {
			unknown = append(unknown, gv.String())
		}
		slices.Sort(unknown)
		out["unknown"] = strings.Join(unknown, "\n")
	}
	return out
}
