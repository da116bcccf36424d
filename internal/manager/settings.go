package manager

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// settingsKeeper follows the ConfigMap with the configuration of workflows. A version that cannot
// be parsed changes nothing: the last good one stays in force.
//
//	ConfigMap ──watch──▶ Parse ──▶ Current ──▶ followers: controllers of workflows and crons
//	                       └──▶ log; an event on the ConfigMap, if this manager leads
type settingsKeeper struct {
	name     string // NAMESPACE/NAME
	informer *informer.Informer[*corev1.ConfigMap]
	current  atomic.Pointer[settings.Settings]
	log      *slog.Logger

	mu        sync.Mutex
	followers map[*func()]bool
	// tell reports a version by an event; it is nil in a manager that does not lead, and until the
	// ConfigMap that existed at the start has been read: a restart writes nothing.
	tell func(cm *corev1.ConfigMap, kind, reason, message string)
}

func newSettingsKeeper(cfg *rest.Config, name string, log *slog.Logger) (*settingsKeeper, error) {
	client, err := kubeclient.ForGroupVersion(cfg, nil, corev1.SchemeGroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	k := &settingsKeeper{name: name, log: log, followers: map[*func()]bool{}}
	k.current.Store(&settings.Settings{From: name})
	namespace, only, _ := strings.Cut(name, "/")
	k.informer = informer.New(client, "configmaps", informer.Options[*corev1.ConfigMap]{
		Namespace: namespace, Fields: fields.OneTermEqualSelector("metadata.name", only).String(),
	})
	k.informer.Follow(k.take, k.gone)
	return k, nil
}

// Current returns the configuration in force.
func (k *settingsKeeper) Current() *settings.Settings { return k.current.Load() }

// run follows the ConfigMap until ctx is done.
func (k *settingsKeeper) run(ctx context.Context) { k.informer.Run(ctx) }

// wait returns when the ConfigMap has been read, or found missing.
func (k *settingsKeeper) wait(ctx context.Context) error { return k.informer.WaitForSync(ctx) }

// following returns a function that has changed called at each change since now, until its context
// is done.
func (k *settingsKeeper) following(changed func()) func(context.Context) {
	known := k.current.Load()
	return func(ctx context.Context) {
		k.mu.Lock()
		k.followers[&changed] = true
		k.mu.Unlock()
		if k.current.Load() != known {
			changed()
		}
		<-ctx.Done()
		k.mu.Lock()
		delete(k.followers, &changed)
		k.mu.Unlock()
	}
}

// telling returns a function that reports changes by events, until its context is done.
func (k *settingsKeeper) telling(writer apiwriter.Writer) func(context.Context) {
	return func(ctx context.Context) {
		k.mu.Lock()
		k.tell = func(cm *corev1.ConfigMap, kind, reason, message string) { writer.Event(cm, kind, reason, message) }
		k.mu.Unlock()
		<-ctx.Done()
		k.mu.Lock()
		k.tell = nil
		k.mu.Unlock()
	}
}

// take takes in a version of the ConfigMap.
func (k *settingsKeeper) take(cm *corev1.ConfigMap) {
	next, err := settings.Parse(cm.Data)
	if err != nil {
		k.log.Error("the configuration of workflows is wrong; the last good one stays in force", "configMap", k.name,
			"version", cm.ResourceVersion, "error", err)
		k.told(cm, corev1.EventTypeWarning, "ConfigurationRefused", "the last good configuration stays in force: "+err.Error())
		if k.current.Load().Good {
			return
		}
		next = &settings.Settings{Refused: err.Error()}
	} else {
		next.Good = true
		unused := make([]string, len(next.Unused))
		for i, u := range next.Unused {
			unused[i] = u.String()
		}
		k.log.Info("the configuration of workflows is in force", "configMap", k.name, "version", cm.ResourceVersion,
			"withoutEffect", unused)
		if len(unused) > 0 {
			k.told(cm, corev1.EventTypeNormal, "ConfigurationPartlyUsed", "without effect: "+strings.Join(unused, "; "))
		}
	}
	next.From = k.name
	k.set(next)
}

// gone takes in that the ConfigMap was deleted.
func (k *settingsKeeper) gone(*corev1.ConfigMap) {
	k.log.Info(fmt.Sprintf("the ConfigMap %s was deleted: workflows have no configuration", k.name))
	k.set(&settings.Settings{From: k.name})
}

func (k *settingsKeeper) set(next *settings.Settings) {
	k.current.Store(next)
	k.mu.Lock()
	var followers []func()
	for f := range k.followers {
		followers = append(followers, *f)
	}
	k.mu.Unlock()
	for _, changed := range followers {
		changed()
	}
}

func (k *settingsKeeper) told(cm *corev1.ConfigMap, kind, reason, message string) {
	k.mu.Lock()
	tell := k.tell
	k.mu.Unlock()
	if tell != nil {
		tell(cm, kind, reason, message)
	}
}
