package applications

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/link"
)

const clustersMax = 20

// managedCluster is an etcd and an API server behind a link.
type managedCluster struct {
	name    string
	cluster *rig.Rig
	rest    *rest.Config
	link    *link.Link
}

// fleet deploys to nearby clusters, by turns with and without one cluster that is cut off, and then
// to distant clusters.
func (t *trial) fleet(ctx context.Context) (err error) {
	hub, err := kubernetes.NewForConfig(t.REST)
	if err != nil {
		return err
	}
	defer func() {
		for _, m := range t.far {
			err = errors.Join(err, m.stop(ctx, err != nil))
		}
	}()
	for i := range t.cfg.Clusters {
		t.Say("starting cluster %d of %d", i+1, t.cfg.Clusters)
		m, err := t.startManaged(ctx, i)
		if err != nil {
			return err
		}
		t.far = append(t.far, m)
		if err := m.reach(ctx, hub, 0); err != nil {
			return err
		}
	}
	//   1. All clusters near. The first deployment starts the watches.
	lost, others := t.far[0], t.far[1:]
	t.where = func(i int) []string { return []string{t.far[i%len(t.far)].name} }
	if _, err := t.deploy(ctx, "first time, all clusters"); err != nil {
		return err
	}
	if err := t.remove(ctx, "delete, all clusters"); err != nil {
		return err
	}
	//   2. The other clusters by turns: with all clusters reachable, and with one cut off. The
	//      order alternates between rounds, because the speed of the machine drifts.
	t.where = func(i int) []string { return []string{others[i%len(others)].name} }
	if err := t.Client.CreateNamespace(ctx, lostNamespace); err != nil {
		return err
	}
	var paces, ratios []float64
	for nth := range unreachableRounds {
		var near, cut *Phase
		turns := []func() error{
			func() (err error) { near, err = t.turn(ctx, fmt.Sprintf("all there %d", nth+1)); return err },
			func() (err error) { cut, err = t.without(ctx, lost, nth); return err },
		}
		if nth%2 > 0 {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			if err := turn(); err != nil {
				return err
			}
		}
		paces = append(paces, near.PerSecond)
		if near.TotalMs.P50 > 0 {
			ratios = append(ratios, cut.TotalMs.P50/near.TotalMs.P50)
		}
	}
	if len(ratios) > 0 {
		t.run.UnreachableRatio = round(median(ratios))
		for _, r := range ratios {
			t.run.UnreachableRatios = append(t.run.UnreachableRatios, round(r))
		}
	}
	//   3. All clusters far.
	for _, m := range t.far {
		if err := m.reach(ctx, hub, t.cfg.RoundTrip); err != nil {
			return err
		}
	}
	if err := t.Quiet(ctx); err != nil {
		return err
	}
	far, err := t.deploy(ctx, "all at "+t.cfg.RoundTrip.String())
	if err != nil {
		return err
	}
	if far.PerSecond > 0 {
		t.run.FarRatio = round(median(paces) / far.PerSecond)
	}
	return t.remove(ctx, "delete, all at "+t.cfg.RoundTrip.String())
}

const (
	lostNamespace    = "lost"
	lostApplications = 20
	// unreachableRounds is odd, because median requires that.
	unreachableRounds = 3
)

// turn deploys to the clusters that t.where returns, and then deletes the applications.
func (t *trial) turn(ctx context.Context, what string) (*Phase, error) {
	p, err := t.deploy(ctx, what)
	if err != nil {
		return nil, err
	}
	return p, t.remove(ctx, "delete, "+what)
}

// without makes a turn while the cluster lost is cut off and some applications wait for it. Then it
// reconnects the cluster, and checks that these applications run there.
func (t *trial) without(ctx context.Context, lost *managedCluster, nth int) (*Phase, error) {
	lost.link.Cut()
	for i := range lostApplications {
		app := t.cfg.Shape.application(lostNamespace, i, 0, 0, []string{lost.name})
		if err := t.apps.Post().Namespace(lostNamespace).Resource("applications").Body(app).Do(ctx).Error(); err != nil {
			return nil, err
		}
	}
	p, err := t.turn(ctx, fmt.Sprintf("one unreachable %d", nth+1))
	if err != nil {
		return nil, err
	}
	t.Say("%s is back", lost.name)
	lost.link.Mend()
	began := time.Now()
	// Applications that do not run are a violation, and no reason to stop.
	ran := func() (int, error) { return t.running(lostNamespace, 1), nil }
	if err := t.Await(ctx, lostApplications, "applications ran", ran); err != nil {
		return nil, err
	}
	t.TimedOut = ""
	t.run.RecoverySeconds = max(t.run.RecoverySeconds, round(time.Since(began).Seconds()))
	t.run.Checked++
	if n := t.running(lostNamespace, 1); n < lostApplications {
		t.run.Bad("%d of %d applications run in the cluster that was unreachable", n, lostApplications)
	}
	return p, errors.Join(t.clear(ctx, lostNamespace, lostApplications), t.Quiet(ctx))
}

// median returns the middle one of an odd number of values.
func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

func (t *trial) startManaged(ctx context.Context, i int) (*managedCluster, error) {
	r, err := rig.Start(ctx, localcluster.Config{
		KubeBinary: t.cfg.Kube, NotDurable: !t.cfg.Durable, WithoutControllerManager: true, WithoutKwok: true,
	}, t.cfg.OutDir, func(localcluster.Component) {})
	if err != nil {
		return nil, err
	}
	m := &managedCluster{name: fmt.Sprintf("far-%02d", i), cluster: r, rest: r.RESTConfig()}
	client, err := kubernetes.NewForConfig(m.rest)
	if err != nil {
		return m, errors.Join(err, m.stop(ctx, true))
	}
	for _, ns := range []string{namespace, lostNamespace} {
		if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			return m, errors.Join(err, m.stop(ctx, true))
		}
	}
	return m, nil
}

// reach registers the cluster with the hub, or changes its registration, behind a new link with
// that round-trip time.
func (m *managedCluster) reach(ctx context.Context, hub kubernetes.Interface, roundTrip time.Duration) error {
	u, err := url.Parse(m.rest.Host)
	if err != nil {
		return err
	}
	l, err := link.New(u.Host, roundTrip)
	if err != nil {
		return err
	}
	old := m.link
	m.link = l
	cfg := rest.CopyConfig(m.rest)
	cfg.Host = "https://" + l.Addr()
	cred, err := clusters.FromREST(m.name, cfg)
	if err != nil {
		return err
	}
	secrets := hub.CoreV1().Secrets(oam.SystemNamespace)
	if old == nil {
		_, err = secrets.Create(ctx, cred.Secret(), metav1.CreateOptions{})
		return err
	}
	if _, err = secrets.Update(ctx, cred.Secret(), metav1.UpdateOptions{}); err != nil {
		return err
	}
	return old.Close()
}

func (m *managedCluster) stop(ctx context.Context, failed bool) error {
	var err error
	if m.link != nil {
		err = m.link.Close()
	}
	return errors.Join(err, m.cluster.Stop(ctx, failed))
}
