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
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Events are callbacks about clusters. Calls of Joined, Left and Relabelled do not overlap, and
// Turned is only called for a cluster that has joined; but Turned may overlap with Left or
// Relabelled of the same cluster. The callbacks must not block for long.
type Events struct {
	// Joined is called when a cluster is added, or after Left when its credential has changed. It
	// is not known yet whether the cluster can be reached.
	Joined func(*Cluster)
	// Left is called when a cluster is removed, or before Joined when its credential has changed.
	Left func(*Cluster)
	// Relabelled is called when a cluster's labels have changed.
	Relabelled func(*Cluster)
	// Turned is called when it is first known whether a cluster can be reached, and when that
	// changes.
	Turned func(*Cluster)
}

// Config configures a Registry. REST and all functions of Events are required.
type Config struct {
	// REST is the configuration of the cluster that has the Secrets.
	REST    *rest.Config
	Gateway Gateway
	Events  Events
	Log     *slog.Logger
	Now     func() time.Time
}

// Cluster is a managed cluster. Only its labels and its reachability change.
type Cluster struct {
	Name string
	// REST is the client configuration for the cluster.
	REST *rest.Config

	cred  *Credential
	stop  context.CancelFunc
	probe *discovery.DiscoveryClient

	mu      sync.Mutex
	breaker breaker
	labels  map[string]string
}

// Unreachable returns nil if the last probes reached the cluster, and otherwise an error that says
// why not. It also returns an error before the first probe has ended.
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

// Known reports whether the first probe has ended.
func (c *Cluster) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaker.known
}

// Labels returns the labels for placement.
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

// brief returns an error's text without the parts that differ from one attempt to the next, because
// a status with the text is written whenever the text changes.
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

// Registry holds the managed clusters.
type Registry struct {
	cfg     Config
	log     *slog.Logger
	secrets *informer.Informer[*corev1.Secret]
	running sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context
	clusters map[string]*Cluster
}

// New returns a Registry. It reads nothing before Run.
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
	r.secrets = informer.New(client, "secrets", informer.Options[*corev1.Secret]{Namespace: oam.SystemNamespace, Labels: CredentialTypeLabel})
	r.secrets.Follow(r.seen, func(s *corev1.Secret) { r.gone(s.Name) })
	return r, nil
}

// Run watches Secrets and probes clusters until ctx is done.
func (r *Registry) Run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	r.secrets.Run(ctx)
	r.running.Wait()
}

// WaitForSync waits until all clusters are known and each has been probed once. It returns an error
// if ctx is done first.
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

// knownPoll is the interval at which WaitForSync checks, because clusters come and go.
const knownPoll = 5 * time.Millisecond

// Get returns the cluster of that name, or nil.
func (r *Registry) Get(name string) *Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clusters[name]
}

// Labelled returns the sorted names of the clusters that have all these labels.
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
		now := r.cfg.Now()
		turned := c.breaker.observe(err, now)
		wait := c.breaker.next(now)
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
		case <-time.After(wait + rand.N(wait/8)): // jitter
		}
	}
}

// Probe returns nil if a cluster answers within probeTimeout. An answer that forbids reading the
// version counts as success.
func Probe(ctx context.Context, client discovery.DiscoveryInterface) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := client.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}
