package objects

import (
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"lockstep.dev/lockstep/internal/apiwriter"
)

// NewFake returns a target for tests that has no server. Its watches of the kinds gvks have synced,
// and show the objects that are put. writer gets the writes.
func NewFake(name string, writer apiwriter.Writer, gvks ...schema.GroupVersionKind) *Target {
	t := &Target{Name: name, Writer: writer, Kinds: &kinds{now: time.Now}}
	mapper := meta.NewDefaultRESTMapper(nil)
	t.Objects = &ManagedObjects{
		kinds: t.Kinds, log: slog.New(slog.DiscardHandler), now: time.Now, changed: func(types.NamespacedName) {},
		watches: map[schema.GroupVersionKind]*kindWatch{},
	}
	for _, gvk := range gvks {
		mapper.Add(gvk, meta.RESTScopeNamespace)
		t.Objects.watches[gvk] = &kindWatch{
			l: t.Objects, gvk: gvk, synced: true, objects: map[types.NamespacedName]*Object{}, waiting: map[types.NamespacedName]bool{},
		}
	}
	t.Kinds.last = &discovered{at: time.Now(), mapper: mapper}
	return t
}

// FailDiscovery makes t a target whose API server cannot list the kinds of gv.
func (t *Target) FailDiscovery(gv schema.GroupVersion) {
	d := *t.Kinds.last
	d.failed = &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{gv: errors.New("it is down")}}
	t.Kinds.last = &d
}

// NewFakeTargets returns Targets of local and remote, for tests.
func NewFakeTargets(local *Target, remote ...*Target) *Targets {
	ts := &Targets{Local: local, remote: map[string]*Target{}, Labels: func(map[string]string) []string { return nil }}
	for _, t := range remote {
		ts.remote[t.Name] = t
	}
	return ts
}
