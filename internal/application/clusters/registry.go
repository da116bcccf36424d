package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Events are told what happens to clusters, one call at a time for each cluster. They must not block for long.
type Events struct {
	// Joined: there is a cluster, or it is reached in another way than before; whether it can be reached is not known yet.
	Joined func(*Cluster)
	// Left: there is no such cluster any longer, or not in this way.
	Left func(*Cluster)
	// Relabelled: its labels have changed.
	Relabelled func(*Cluster)
	// Turned: it can be reached, or no longer. The first call tells which of them.
	Turned func(*Cluster)
}

// Config says where the Secrets are. REST and Events' functions are required.
type Config struct {
	// REST is the cluster with the Secrets.
	REST    *rest.Config
	Gateway Gateway
	Events  Events
	Log     *slog.Logger
	Now     func() time.Time
}

// Cluster is a managed cluster. Its labels and whether it can be reached change; the rest does not.
type Cluster struct {
	Name string
	// REST is for everything that is done with the cluster.
	REST *rest.Config

	cred  *Credential
	stop  context.CancelFunc
	probe *discovery.DiscoveryClient

	mu      sync.Mutex
	breaker breaker
	labels  map[string]string
}

// Unreachable is nil while the cluster can be reached, as far as is known, and else why it cannot.
func (c *Cluster) Unreachable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.breaker.known:
		return fmt.Errorf("cluster %s has not been reached yet", c.Name)
	case c.breaker.open:
		return fmt.Errorf("cluster %s is unreachable since %s: %s", c.Name, c.breaker.since.UTC().Format(time.RFC3339), brief(c.breaker.reason))
	}
	return nil
}

// Known says whether it has been tried at least once to reach the cluster.
func (c *Cluster) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaker.known
}

// Labels are those that placement goes by.
func (c *Cluster) Labels() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.labels
}

func (c *Cluster) relabel(cred *Credential) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := maps.Clone(cred.Labels)
	now[ControlPlaneLabel] = "false"
	if maps.Equal(now, c.labels) {
		return false
	}
	c.labels = now
	return true
}

// brief is an error without what differs from one attempt to the next, so that it can be shown in a status that is
// written when it changes.
func brief(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", probeTimeout)
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// Registry knows the managed clusters.
type Registry struct {
	cfg     Config
	log     *slog.Logger
	secrets *cluster.Kind[*corev1.Secret]
	running sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context
	clusters map[string]*Cluster
}

// New prepares a registry. Nothing is read before Run.
func New(cfg Config) (*Registry, error) {
	if cfg.REST == nil || cfg.Events.Joined == nil || cfg.Events.Left == nil || cfg.Events.Relabelled == nil || cfg.Events.Turned == nil {
		return nil, errors.New("clusters: REST and all Events are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, corev1.SchemeGroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("clusters: %w", err)
	}
	r := &Registry{cfg: cfg, log: cfg.Log, clusters: map[string]*Cluster{}}
	r.secrets = cluster.WatchIn(client, "secrets", oam.SystemNamespace, CredentialTypeLabel, &corev1.Secret{}, nil)
	r.secrets.Follow(r.seen, func(s *corev1.Secret) { r.gone(s.Name) })
	return r, nil
}

// Run watches and probes until ctx is done.
func (r *Registry) Run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	r.secrets.Run(ctx)
	r.running.Wait()
}

// WaitForSync returns when all clusters are known and it has been tried to reach each, or with an error when ctx is done before.
func (r *Registry) WaitForSync(ctx context.Context) error {
	if err := r.secrets.WaitForSync(ctx); err != nil {
		return err
	}
	for slices.ContainsFunc(r.all(), func(c *Cluster) bool { return !c.Known() }) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the managed clusters: %w", context.Cause(ctx))
		case <-time.After(knownPoll):
		}
	}
	return nil
}

// knownPoll is how often WaitForSync looks, while clusters come and go.
const knownPoll = 5 * time.Millisecond

// Get is the cluster of that name, or nil.
func (r *Registry) Get(name string) *Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clusters[name]
}

// Labelled are the names of the clusters that have all these labels, sorted.
func (r *Registry) Labelled(want map[string]string) []string {
	selector := labels.SelectorFromSet(want)
	var names []string
	for _, c := range r.all() {
		if selector.Matches(labels.Set(c.Labels())) {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *Registry) all() []*Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.clusters))
}

func (r *Registry) seen(s *corev1.Secret) {
	cred, err := FromSecret(s)
	if err != nil {
		r.log.Warn("a managed cluster cannot be used", "error", err)
		r.gone(s.Name)
		return
	}
	if there := r.Get(cred.Name); there != nil {
		if sameWay(there.cred, cred) {
			if there.relabel(cred) {
				r.cfg.Events.Relabelled(there)
			}
			return
		}
		r.gone(cred.Name)
	}
	c, err := r.connect(cred)
	if err != nil {
		r.log.Warn("a managed cluster cannot be used", "cluster", cred.Name, "error", err)
		return
	}
	r.mu.Lock()
	r.clusters[c.Name] = c
	ctx, stop := context.WithCancel(r.ctx)
	c.stop = stop
	r.mu.Unlock()
	r.log.Info("a managed cluster", "cluster", c.Name, "endpoint", cred.Endpoint)
	r.cfg.Events.Joined(c)
	r.running.Go(func() { r.watch(ctx, c) })
}

func (r *Registry) connect(cred *Credential) (*Cluster, error) {
	way, err := cred.REST(r.cfg.REST, r.cfg.Gateway)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: cred.Name, REST: way, cred: cred}
	c.relabel(cred)
	if c.probe, err = discovery.NewDiscoveryClientForConfig(way); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cred.Name, err)
	}
	return c, nil
}

func (r *Registry) gone(name string) {
	r.mu.Lock()
	c := r.clusters[name]
	delete(r.clusters, name)
	r.mu.Unlock()
	if c == nil {
		return
	}
	c.stop()
	r.log.Info("no longer a managed cluster", "cluster", name)
	r.cfg.Events.Left(c)
}

// watch probes a cluster until ctx is done.
func (r *Registry) watch(ctx context.Context, c *Cluster) {
	for {
		err := Probe(ctx, c.probe)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		turned := c.breaker.observe(err, r.cfg.Now())
		wait := c.breaker.next()
		c.mu.Unlock()
		if turned {
			if err != nil {
				r.log.Warn("a managed cluster is unreachable", "cluster", c.Name, "error", brief(err))
			} else {
				r.log.Info("a managed cluster is reachable", "cluster", c.Name)
			}
			r.cfg.Events.Turned(c)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait - rand.N(wait/8)): // not all at the same moment
		}
	}
}

// Probe asks a cluster whether it is there. That it does not let us see its version is an answer too.
func Probe(ctx context.Context, client discovery.DiscoveryInterface) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := client.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}
