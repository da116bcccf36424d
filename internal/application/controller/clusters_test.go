package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/link"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// far is a real control plane that is managed, under a name, over a link that tests can cut.
type far struct {
	name string
	link *link.Link
	core kubernetes.Interface
}

// fleet holds two control planes that all tests share. They have no controller manager:
// Applications in them have no workloads.
var fleet struct {
	once sync.Once
	all  []*localcluster.Cluster
}

func (e *env) far(n int) *far {
	e.Helper()
	fleet.once.Do(func() {
		for range 2 {
			fleet.all = append(fleet.all, localtest.Beside(e))
		}
	})
	c := fleet.all[n]
	cfg := c.RESTConfig()
	u, err := url.Parse(cfg.Host)
	if err != nil {
		e.Fatal(err)
	}
	l, err := link.New(u.Host, 0)
	if err != nil {
		e.Fatal(err)
	}
	f := &far{name: fmt.Sprintf("far-%d-%s", n, e.ns), link: l, core: kubernetes.NewForConfigOrDie(cfg)}
	if _, err := f.core.CoreV1().Namespaces().Create(e.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.ns}}, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	cfg.Host = "https://" + l.Addr()
	cred, err := clusters.FromREST(f.name, cfg)
	if err != nil {
		e.Fatal(err)
	}
	cred.Labels = map[string]string{"of": e.ns}
	if _, err := e.core.CoreV1().Secrets(oam.SystemNamespace).Create(e.Context(), cred.Secret(), metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		f.detach(e)
		_ = l.Close()
	})
	return f
}

func (f *far) detach(e *env) {
	err := e.core.CoreV1().Secrets(oam.SystemNamespace).Delete(context.Background(), f.name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		e.Error(err)
	}
}

// config waits until the Application's ConfigMap has a value in the cluster.
func (f *far) config(e *env, name, value string) {
	e.Helper()
	e.eventually(fmt.Sprintf("%s is %s in %s", name, value, f.name), func() error {
		cm, err := f.core.CoreV1().ConfigMaps(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err == nil && cm.Data["k"] != value {
			err = fmt.Errorf("it is %q", cm.Data["k"])
		}
		return err
	})
}

func (f *far) without(e *env, name string) {
	e.Helper()
	e.eventually(name+" is gone from "+f.name, func() error {
		_, err := f.core.CoreV1().ConfigMaps(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

// measures waits until the controller exposes a metric above zero with the given labels.
func (e *env) measures(name string, labels ...string) {
	e.Helper()
	e.eventually(name, func() error {
		families, err := shared.registry.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var has []string
				for _, l := range m.GetLabel() {
					has = append(has, l.GetName(), l.GetValue())
				}
				value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				if f.GetName() != name || value == 0 {
					continue
				}
				missing := false
				for i := 0; i < len(labels); i += 2 {
					at := slices.Index(has, labels[i])
					missing = missing || at < 0 || has[at+1] != labels[i+1]
				}
				if !missing {
					return nil
				}
			}
		}
		return fmt.Errorf("nothing is measured with %v", labels)
	})
}

// placed returns the spec of an Application of one ConfigMap in the clusters of a topology.
func placed(name, value, topology string) string {
	return fmt.Sprintf(`
components:
- name: %[1]s
  type: k8s-objects
  properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s}, data: {k: %[2]s}}]}
policies:
- {name: where, type: topology, properties: %[3]s}
`, name, value, topology)
}

func TestApplicationsGoToClusters(t *testing.T) {
	e := start(t)
	a, b := e.far(0), e.far(1)
	e.app("shop", placed("shop", "v", fmt.Sprintf("{clusters: [local, %s]}", a.name)))
	app := e.until("shop", inPhase(oam.PhaseRunning))
	a.config(e, "shop", "v")
	e.eventually("it is in the local cluster too", func() error { _, err := e.get(configMaps, "shop"); return err })
	b.without(e, "shop")
	if s := app.Status.Services; len(s) != 2 || s[0].Cluster != "local" || s[1].Cluster != a.name {
		t.Errorf("services: %+v", s)
	}

	// Requests to the cluster and its reachability are measured.
	e.measures("lockstep_cluster_reachable", "cluster", a.name)
	e.measures("lockstep_cluster_requests_total", "cluster", a.name, "code", "201")
	e.measures("lockstep_cluster_request_seconds", "cluster", a.name)
	e.measures("lockstep_applications", "phase", "running")
	e.measures("lockstep_application_render_seconds")

	// Drift is repaired at once in managed clusters, too.
	if err := a.core.CoreV1().ConfigMaps(e.ns).Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.config(e, "shop", "v")
	patch := []byte(`{"data":{"k":"changed"}}`)
	if _, err := a.core.CoreV1().ConfigMaps(e.ns).Patch(t.Context(), "shop", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	a.config(e, "shop", "v")

	// Move from one cluster to others that are chosen by label.
	e.app("shop", placed("shop", "w", fmt.Sprintf("{clusterLabelSelector: {of: %s}}", e.ns)))
	a.config(e, "shop", "w")
	b.config(e, "shop", "w")
	e.gone(configMaps, "shop")

	// A cluster that loses the label loses the Application's objects.
	patch = []byte(`{"metadata":{"labels":{"of":null}}}`)
	if _, err := e.core.CoreV1().Secrets(oam.SystemNamespace).Patch(t.Context(), b.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.without(e, "shop")
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	a.without(e, "shop")
}

func TestAnUnreachableClusterDelaysOnlyWhatIsThere(t *testing.T) {
	e := start(t)
	a, b := e.far(0), e.far(1)
	both := fmt.Sprintf("{clusters: [%s, %s]}", a.name, b.name)
	e.app("both", placed("both", "v", both))
	e.app("gone", placed("gone", "v", both))
	e.app("only-a", placed("only-a", "v", fmt.Sprintf("{clusters: [%s]}", a.name)))
	for _, name := range []string{"both", "gone", "only-a"} {
		e.until(name, inPhase(oam.PhaseRunning))
	}
	b.link.Cut()
	// Many Applications that wait for a cluster not yet known to be unreachable take no place from
	// others.
	for i := range 16 {
		name := fmt.Sprintf("lost-%d", i)
		e.app(name, placed(name, "v", fmt.Sprintf("{clusters: [%s]}", b.name)))
	}
	e.app("beside", placed("beside", "v", fmt.Sprintf("{clusters: [%s]}", a.name)))
	e.until("beside", inPhase(oam.PhaseRunning))
	// Only the status of affected Applications shows it.
	e.until("both", func(app *oam.Application) error {
		for _, s := range app.Status.Services {
			if s.Cluster == b.name && strings.Contains(s.Message, "unreachable since") {
				return nil
			}
		}
		return errors.New("nothing is said of the cluster")
	})
	e.until("only-a", inPhase(oam.PhaseRunning))
	// Changes and deletions in other clusters go on.
	e.app("both", placed("both", "w", both))
	a.config(e, "both", "w")
	e.app("new", placed("new", "v", both))
	a.config(e, "new", "v")
	e.delete(applications, "only-a")
	e.gone(applications, "only-a")
	e.delete(applications, "gone")
	a.without(e, "gone")
	e.until("gone", says(oam.ConditionDeleting, "1 objects remain", b.name, "unreachable"))
	// The reconnected cluster catches up without further changes.
	b.link.Mend()
	b.config(e, "both", "w")
	b.config(e, "new", "v")
	b.config(e, "lost-15", "v")
	b.without(e, "gone")
	e.gone(applications, "gone")
	e.until("both", inPhase(oam.PhaseRunning))
	e.until("new", inPhase(oam.PhaseRunning))
	for _, name := range []string{"both", "new"} {
		e.delete(applications, name)
		e.gone(applications, name)
	}
}

func TestWhatIsInADetachedClusterStaysThere(t *testing.T) {
	e := start(t)
	a := e.far(0)
	e.app("shop", placed("shop", "v", fmt.Sprintf("{clusters: [%s]}", a.name)))
	e.until("shop", inPhase(oam.PhaseRunning))
	a.detach(e)
	e.until("shop", says(oam.ConditionReady, a.name, "there is no such cluster"))
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	a.config(e, "shop", "v")
}

func TestObjectsOfTheControlPlane(t *testing.T) {
	e := start(t)
	a := e.far(0)
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: TraitDefinition
metadata: {name: near}
spec: {controlPlaneOnly: true, schematic: {cue: {template: 'outputs: near: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "near", data: of: context.cluster}'}}}
`)
	e.app("shop", strings.Replace(placed("shop", "v", fmt.Sprintf("{clusters: [%s]}", a.name)), "  type: k8s-objects", "  type: k8s-objects\n  traits: [{type: near}]", 1))
	e.until("shop", inPhase(oam.PhaseRunning))
	a.config(e, "shop", "v")
	a.without(e, "near")
	if of := e.data("near")["of"]; of != a.name {
		t.Errorf("the object near is of %q", of)
	}
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	e.gone(configMaps, "near")
}

// TestInputsAreOfTheirCluster checks that a component that is deployed to several clusters takes, in
// each, what the other component gives there.
func TestInputsAreOfTheirCluster(t *testing.T) {
	e := start(t)
	a, b := e.far(0), e.far(1)
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: located}
spec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "ConfigMap", data: {k: "in \(context.cluster)", more: parameter.more}}, parameter: more: *"" | string'}}}
`)
	spec := fmt.Sprintf(`
components:
- {name: one, type: located, outputs: [{name: place, valueFrom: output.data.k}]}
- name: two
  type: k8s-objects
  properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: two}, data: {}}]}
  inputs: [{from: place, parameterKey: "objects[0].data.k"}, {from: context.cluster, parameterKey: "objects[0].data.cluster"}]
policies: [{name: everywhere, type: topology, properties: {clusters: [%s, %s]}}]
`, a.name, b.name)
	e.app("shop", spec)
	e.until("shop", inPhase(oam.PhaseRunning))
	for _, f := range []*far{a, b} {
		f.config(e, "two", "in "+f.name)
		if cm, err := f.core.CoreV1().ConfigMaps(e.ns).Get(t.Context(), "two", metav1.GetOptions{}); err != nil || cm.Data["cluster"] != f.name {
			t.Errorf("in %s: %v, error %v", f.name, cm.Data, err)
		}
	}
	// Another state of the application gives the same.
	e.app("shop", strings.Replace(spec, "type: located, ", "type: located, properties: {more: changed}, ", 1))
	e.until("shop", inPhase(oam.PhaseRunning))
	for _, f := range []*far{a, b} {
		f.config(e, "two", "in "+f.name)
	}
	e.delete(applications, "shop")
	e.gone(applications, "shop")
}
