package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// fleet implements Clusters. It has the labels of clusters by name.
type fleet map[string]map[string]string

func (f fleet) Target(name string) (plan.Target, error) {
	if _, ok := f[name]; !ok && name != "" {
		return plan.Target{}, fmt.Errorf("cluster %s: %w", name, plan.ErrNoCluster)
	}
	return plan.Target{Kinds: everyKind{}}, nil
}

func (f fleet) Labelled(want map[string]string) []string {
	var out []string
	for name, labels := range f {
		all := true
		for k, v := range want {
			all = all && labels[k] == v
		}
		if all {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func TestWhereComponentsGo(t *testing.T) {
	clusters := fleet{"a": {"region": "hz"}, "b": {"region": "hz"}, "c": {"region": "bj"}}
	defs := loadBuiltin(t)
	for name, c := range map[string]struct {
		policies string
		want     []string // CLUSTER/NAMESPACE of the component
		err      string
	}{
		"no policy: the application's own namespace": {"[]", []string{"local/default"}, ""},
		"a namespace":                                 {"[{name: t, type: topology, properties: {namespace: prod}}]", []string{"local/prod"}, ""},
		"by names":                                    {"[{name: t, type: topology, properties: {clusters: [b, local]}}]", []string{"b/default", "local/default"}, ""},
		"by labels":                                   {"[{name: t, type: topology, properties: {clusterLabelSelector: {region: hz}, namespace: prod}}]", []string{"a/prod", "b/prod"}, ""},
		"by labels under their old name":              {"[{name: t, type: topology, properties: {clusterSelector: {region: bj}}}]", []string{"c/default"}, ""},
		"two policies that name one cluster":          {"[{name: t, type: topology, properties: {clusters: [a, b]}}, {name: u, type: topology, properties: {clusters: [b, c]}}]", []string{"a/default", "b/default", "c/default"}, ""},
		"an unknown name":                             {"[{name: t, type: topology, properties: {clusters: [x]}}]", nil, "policy t: cluster x: there is no such cluster"},
		"labels that none has":                        {"[{name: t, type: topology, properties: {clusterLabelSelector: {region: us}}}]", nil, "no cluster is labelled region=us"},
		"labels that none has, where that is allowed": {"[{name: t, type: topology, properties: {clusterLabelSelector: {region: us}, allowEmpty: true}}]", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(t, "components: [{name: web, type: webservice, properties: {image: nginx}}]\npolicies: "+c.policies)
			p, err := plan.Make(&plan.Input{Namespace: "default", Name: "shop", Revision: "shop-v1", RevisionNum: 1, Spec: spec, Clusters: clusters}, defs)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !errors.Is(err, plan.ErrNoCluster) {
					t.Fatalf("%v; want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range p.Components {
				comp := &p.Components[i]
				got = append(got, comp.ClusterName()+"/"+comp.Namespace)
				if r := p.Resources[comp.Workload]; r.Cluster != comp.Cluster || r.Namespace != comp.Namespace {
					t.Errorf("%s is in %s", r.Ref, comp.Key())
				} else if label := strings.Contains(string(r.JSON), oam.AppClusterLabel); label != (comp.Cluster != "") {
					t.Errorf("label of the cluster: %t", label)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestObjectsWithALabelOfACluster checks that an object whose label app.oam.dev/cluster names a cluster is
// in that cluster, once, whatever the clusters of its component are.
func TestObjectsWithALabelOfACluster(t *testing.T) {
	clusters := fleet{"a": {}, "b": {}, "c": {}}
	defs := loadBuiltin(t)
	const spec = `
components:
- name: web
  type: k8s-objects
  properties:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: plain}}
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: named, labels: {app.oam.dev/cluster: %s}}}
policies: [{name: t, type: topology, properties: {clusters: [a, b]}}]
`
	for label, want := range map[string]struct{ refs, err string }{
		"c":     {"ConfigMap default/plain in cluster a, ConfigMap default/named in cluster c, ConfigMap default/plain in cluster b", ""},
		"local": {"ConfigMap default/plain in cluster a, ConfigMap default/named, ConfigMap default/plain in cluster b", ""},
		"x":     {"", "outputs.objects-1: cluster x: there is no such cluster"},
	} {
		memo := &plan.Memo{}
		for range 3 { // later, objects may be remembered
			p, err := plan.Make(&plan.Input{Namespace: "default", Name: "shop", Spec: specOf(t, fmt.Sprintf(spec, label)), Clusters: clusters, Memo: memo}, defs)
			if want.err != "" {
				if err == nil || !strings.Contains(err.Error(), want.err) || !errors.Is(err, plan.ErrNoCluster) {
					t.Errorf("%s: %v", label, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range p.Resources {
				got = append(got, p.Resources[i].String())
				if r := &p.Resources[i]; strings.Contains(string(r.JSON), fmt.Sprintf("%q:%q", oam.AppClusterLabel, r.Cluster)) != (r.Cluster != "") && label != "local" {
					t.Errorf("%s has the labels in %s", r.Ref, r.JSON)
				}
			}
			if d := cmp.Diff(want.refs, strings.Join(got, ", ")); d != "" {
				t.Errorf("label %s (-want +got):\n%s", label, d)
			}
		}
	}
}
