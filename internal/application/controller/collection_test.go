package controller_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// fate is what becomes of an object.
type fate string

const (
	deleted fate = "deleted"
	// owned means that the object stays and is the Application's.
	owned fate = "owned"
	// released means that the object stays and no Application's labels are on it.
	released fate = "released"
)

// becomes waits until the ConfigMap met its fate. read gets the ConfigMap's labels.
func (e *env) becomes(name string, want fate, read func() (map[string]string, error)) {
	e.Helper()
	e.eventually(fmt.Sprintf("%s is %s", name, want), func() error {
		labels, err := read()
		is := owned
		switch {
		case err != nil:
			is = deleted
		case labels[oam.AppNameLabel] == "" && labels[oam.AppNamespaceLabel] == "":
			is = released
		}
		if is != want {
			return fmt.Errorf("it is %s: %v, %v", is, labels, err)
		}
		return nil
	})
}

// here returns a function that reads the labels of a ConfigMap of the local cluster.
func (e *env) here(namespace, name string) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		cm, err := e.core.CoreV1().ConfigMaps(namespace).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return cm.Labels, nil
	}
}

// there is here for a managed cluster.
func (f *far) there(e *env, name string) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		cm, err := f.core.CoreV1().ConfigMaps(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return cm.Labels, nil
	}
}

// collects returns a garbage-collect policy with a strategy for the ConfigMap data.
func collects(strategy string) string {
	switch strategy {
	case "none":
		return "- {name: gc, type: garbage-collect}"
	case "keepLegacyResource":
		return "- {name: gc, type: garbage-collect, properties: {keepLegacyResource: true}}"
	}
	return "- {name: gc, type: garbage-collect, properties: {rules: [{selector: {resourceNames: [data]}, strategy: " + strategy + "}]}}"
}

// TestEveryStrategyOfCollection checks what becomes of an object by each strategy of garbage
// collection when the object leaves an Application in each way.
func TestEveryStrategyOfCollection(t *testing.T) {
	strategies := []string{"none", "onAppUpdate", "onAppDelete", "never", "keepLegacyResource"}
	none := collects("none")
	for _, way := range []struct {
		name string
		// leave makes the object leave the Application app, which runs with the policy.
		leave func(e *env, app, policy string)
		// fates has the object's fate by strategy.
		fates [5]fate
		// ends is set if the Application is deleted.
		ends bool
	}{
		{"the object leaves the spec", func(e *env, app, policy string) {
			e.app(app, configs(policy, "other"))
		}, [5]fate{deleted, deleted, owned, released, owned}, false},
		{"the application is deleted", func(e *env, app, _ string) {
			e.delete(applications, app)
		}, [5]fate{deleted, deleted, deleted, released, deleted}, true},
		{"the application is deleted after the object has left the spec", func(e *env, app, policy string) {
			e.app(app, configs(policy, "other"))
			e.until(app, inPhase(oam.PhaseRunning))
			e.delete(applications, app)
		}, [5]fate{deleted, deleted, deleted, released, deleted}, true},
		{"the policy leaves with the object", func(e *env, app, _ string) {
			e.app(app, configs(none, "other"))
		}, [5]fate{deleted, deleted, owned, released, deleted}, false},
		{"the policy leaves before the object", func(e *env, app, _ string) {
			e.app(app, configs(none, "data", "other"))
			e.until(app, inPhase(oam.PhaseRunning))
			e.app(app, configs(none, "other"))
		}, [5]fate{deleted, deleted, deleted, deleted, deleted}, false},
		{"the policy leaves and the application is deleted", func(e *env, app, _ string) {
			e.app(app, configs(none, "data", "other"))
			e.until(app, inPhase(oam.PhaseRunning))
			e.delete(applications, app)
		}, [5]fate{deleted, deleted, deleted, deleted, deleted}, true},
		{"the policy is malformed when the application is deleted", func(e *env, app, _ string) {
			e.app(app, configs("- {name: gc, type: garbage-collect, properties: {rule: []}}", "data", "other"))
			e.until(app, says(oam.ConditionReady, "rule"))
			e.delete(applications, app)
		}, [5]fate{deleted, deleted, deleted, released, deleted}, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			for i, strategy := range strategies {
				t.Run(strategy, func(t *testing.T) {
					e := start(t)
					policy := collects(strategy)
					e.app("a", configs(policy, "data", "other"))
					e.until("a", inPhase(oam.PhaseRunning))
					way.leave(e, "a", policy)
					if way.ends {
						e.gone(applications, "a")
						e.gone(configMaps, "other")
					} else {
						e.until("a", inPhase(oam.PhaseRunning))
					}
					e.becomes("data", way.fates[i], e.here(e.ns, "data"))
				})
			}
		})
	}
}

// TestARuleThatComesLateHolds checks that the policies which an Application has when an object
// leaves count, although the object was applied without them.
func TestARuleThatComesLateHolds(t *testing.T) {
	for name, leave := range map[string]func(e *env){
		"the application is deleted": func(e *env) {
			e.app("a", configs(collects("never"), "data"))
			e.delete(applications, "a")
			e.gone(applications, "a")
		},
		"the object leaves": func(e *env) { e.app("a", configs(collects("never"), "other")) },
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			e.app("a", configs(collects("none"), "data"))
			e.until("a", inPhase(oam.PhaseRunning))
			leave(e)
			e.becomes("data", released, e.here(e.ns, "data"))
		})
	}
	t.Run("the rule says that the object is deleted after all", func(t *testing.T) {
		e := start(t)
		e.app("a", configs(collects("onAppDelete"), "data", "other"))
		e.until("a", inPhase(oam.PhaseRunning))
		e.app("a", configs(collects("onAppDelete"), "other"))
		e.until("a", inPhase(oam.PhaseRunning))
		e.becomes("data", owned, e.here(e.ns, "data"))
		e.app("a", configs(collects("onAppUpdate"), "other"))
		e.becomes("data", deleted, e.here(e.ns, "data"))
	})
}

// TestStrategiesHoldForNamespacesAndClustersThatLeave checks what becomes of objects in a namespace
// or a cluster that an Application no longer chooses, and in a cluster that is lost.
func TestStrategiesHoldForNamespacesAndClustersThatLeave(t *testing.T) {
	e := start(t)
	a := e.far(0)
	chosen := fmt.Sprintf("{clusterLabelSelector: {of: %s}, allowEmpty: true}", e.ns)
	fates := map[string]fate{"none": deleted, "onAppUpdate": deleted, "onAppDelete": owned, "never": released, "keepLegacyResource": owned}
	// named returns the spec of an Application of a ConfigMap with the Application's name.
	named := func(app, topology, strategy string) string {
		return placed(app, "v", topology) + strings.Replace(collects(strategy), "[data]", "["+app+"]", 1)
	}
	for strategy := range fates {
		app := "cluster-" + strings.ToLower(strategy)
		e.app(app, named(app, chosen, strategy))
		e.until(app, inPhase(oam.PhaseRunning))
		a.config(e, app, "v")
	}
	patch := []byte(`{"metadata":{"labels":{"of":null}}}`)
	if _, err := e.core.CoreV1().Secrets(oam.SystemNamespace).Patch(t.Context(), a.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for strategy, want := range fates {
		app := "cluster-" + strings.ToLower(strategy)
		e.becomes(app+", of a cluster that has left,", want, a.there(e, app))
		e.delete(applications, app)
		e.gone(applications, app)
		if want == owned {
			e.becomes(app+", after the application,", deleted, a.there(e, app))
		}
	}
	a.config(e, "cluster-never", "v")

	far := e.ns + "-far"
	e.namespace(far)
	for strategy, want := range fates {
		app := "namespace-" + strings.ToLower(strategy)
		e.app(app, named(app, "{clusters: [local], namespace: "+far+"}", strategy))
		e.until(app, inPhase(oam.PhaseRunning))
		e.app(app, named(app, "{clusters: [local]}", strategy))
		e.becomes(app+", of a namespace that has left,", want, e.here(far, app))
	}
}

// TestADeletionDoesNotWaitForWhatStays checks that an Application ends although objects that stay
// are in a cluster that cannot be reached or is no longer managed.
func TestADeletionDoesNotWaitForWhatStays(t *testing.T) {
	for name, lose := range map[string]func(e *env, f *far){
		"the cluster cannot be reached": func(e *env, f *far) {
			f.link.Cut()
			e.until("b", func(app *oam.Application) error {
				for _, s := range app.Status.Services {
					if strings.Contains(s.Message, "unreachable since") {
						return nil
					}
				}
				return fmt.Errorf("nothing is said of the cluster")
			})
		},
		"the cluster is detached": func(e *env, f *far) { f.detach(e) },
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			f := e.far(0)
			for _, app := range []string{"a", "b"} {
				e.app(app, placed(app, "v", "{clusters: ["+f.name+"]}")+strings.Replace(collects("never"), "[data]", "["+app+"]", 1))
				e.until(app, inPhase(oam.PhaseRunning))
			}
			lose(e, f)
			e.delete(applications, "a")
			e.gone(applications, "a")
			f.config(e, "a", "v")
			e.delete(applications, "b")
			e.gone(applications, "b")
		})
	}
}

// TestEveryStrategyInAClusterThatIsLost checks what becomes of objects in a cluster that cannot be
// reached while they leave an Application or the Application is deleted, and in one that is detached.
func TestEveryStrategyInAClusterThatIsLost(t *testing.T) {
	e := start(t)
	f := e.far(0)
	fates := map[string][2]fate{ // of an object that leaves, and of one whose Application is deleted
		"none": {deleted, deleted}, "onAppUpdate": {deleted, deleted}, "onAppDelete": {owned, deleted}, "never": {}, "keepLegacyResource": {owned, deleted},
	}
	spec := func(app, object, strategy string) string {
		return placed(object, "v", "{clusters: ["+f.name+"]}") + strings.Replace(collects(strategy), "[data]", "["+app+"]", 1)
	}
	named := func(way, strategy string) string { return way + "-" + strings.ToLower(strategy) }
	for strategy := range fates {
		for _, way := range []string{"leaves", "ends", "detached"} {
			app := named(way, strategy)
			e.app(app, spec(app, app, strategy))
			e.until(app, inPhase(oam.PhaseRunning))
		}
	}
	f.link.Cut()
	for strategy := range fates {
		app := named("leaves", strategy)
		e.app(app, spec(app, app+"-new", strategy))
		app = named("ends", strategy)
		e.delete(applications, app)
		if strategy == "never" {
			e.gone(applications, app)
		} else {
			e.until(app, says(oam.ConditionDeleting, "1 objects remain", f.name, "unreachable"))
		}
	}
	f.link.Mend()
	for strategy, want := range fates {
		app := named("leaves", strategy)
		f.config(e, app+"-new", "v")
		if strategy == "never" { // nothing waits for its labels to be taken off
			f.config(e, app, "v")
			e.gone(applications, named("ends", strategy))
			f.config(e, named("ends", strategy), "v")
			continue
		}
		e.becomes(app, want[0], f.there(e, app))
		app = named("ends", strategy)
		e.gone(applications, app)
		e.becomes(app, want[1], f.there(e, app))
	}
	f.detach(e)
	for strategy := range fates {
		app := named("detached", strategy)
		e.delete(applications, app)
		e.gone(applications, app)
		f.config(e, app, "v")
	}
}

// deployed returns the spec of an Application of a Deployment with a propagation rule.
func deployed(propagation string, names ...string) string {
	objects := ""
	for _, n := range names {
		objects += fmt.Sprintf(`
    - apiVersion: apps/v1
      kind: Deployment
      metadata: {name: %[1]s}
      spec: {replicas: 0, selector: {matchLabels: {of: %[1]s}}, template: {metadata: {labels: {of: %[1]s}}, spec: {containers: [{name: c, image: i}]}}}`, n)
	}
	return "components:\n- name: web\n  type: k8s-objects\n  properties:\n    objects:" + objects + `
policies:
- {name: gc, type: garbage-collect, properties: {rules: [{selector: {resourceTypes: [Deployment]}, propagation: ` + propagation + `}]}}
`
}

// TestPropagationHoldsForEveryDeletion checks what becomes of the dependents of a Deployment that
// leaves an Application and of one that is deleted with it.
func TestPropagationHoldsForEveryDeletion(t *testing.T) {
	replicaSets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	for propagation, want := range map[string]int{"orphan": 1, "cascading": 0} {
		t.Run(propagation, func(t *testing.T) {
			e := start(t)
			dependents := func(of string, want int) {
				t.Helper()
				e.eventually("the ReplicaSets of "+of, func() error {
					list, err := e.dyn.Resource(replicaSets).Namespace(e.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "of=" + of})
					if err == nil && len(list.Items) != want {
						err = fmt.Errorf("there are %d, want %d", len(list.Items), want)
					}
					return err
				})
			}
			e.app("a", deployed(propagation, "one", "two"))
			e.until("a", inPhase(oam.PhaseRunning))
			dependents("one", 1)
			dependents("two", 1)
			e.app("a", deployed(propagation, "two"))
			e.gone(deployments, "one")
			dependents("one", want)
			e.delete(applications, "a")
			e.gone(applications, "a")
			if propagation == "cascading" { // the dependents go first
				if _, err := e.get(deployments, "two"); err == nil {
					t.Error("the Deployment is there after its application")
				}
				list, err := e.dyn.Resource(replicaSets).Namespace(e.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "of=two"})
				if err != nil || len(list.Items) > 0 {
					t.Errorf("%d ReplicaSets are there after their Deployment, %v", len(list.Items), err)
				}
			}
			e.gone(deployments, "two")
			dependents("two", want)
		})
	}
}

// TestWhatStaysHoldsNothingUp checks that objects which other components depend on are removed
// although the objects of the dependents stay.
func TestWhatStaysHoldsNothingUp(t *testing.T) {
	e := start(t)
	e.app("a", `
components:
- {name: base, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: base}}]}}
- {name: top, type: k8s-objects, dependsOn: [base], properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: data}}]}}
policies:
- {name: order, type: garbage-collect, properties: {order: dependency}}
`+collects("never"))
	e.until("a", inPhase(oam.PhaseRunning))
	e.delete(applications, "a")
	e.gone(applications, "a")
	e.gone(configMaps, "base")
	e.becomes("data", released, e.here(e.ns, "data"))
}

// TestWhatWasReleasedIsTakenOverOnly checks that an object which was left alone belongs to an
// Application again only by a take-over policy.
func TestWhatWasReleasedIsTakenOverOnly(t *testing.T) {
	for name, leave := range map[string]func(e *env){
		"by a rule": func(e *env) {
			e.app("a", configs(collects("never"), "data", "other"))
			e.until("a", inPhase(oam.PhaseRunning))
			e.app("a", configs(collects("never"), "other"))
			e.becomes("data", released, e.here(e.ns, "data"))
		},
		"by the finalizer": func(e *env) {
			e.app("a", configs(collects("none"), "data"))
			e.until("a", inPhase(oam.PhaseRunning))
			patch := []byte(`{"metadata":{"finalizers":["` + oam.ResourceTrackerFinalizer + `","` + oam.OrphanFinalizer + `"]}}`)
			if _, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(e.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				e.Fatal(err)
			}
			e.delete(applications, "a")
			e.gone(applications, "a")
			e.becomes("data", released, e.here(e.ns, "data"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			leave(e)
			e.app("a", configs(collects("never"), "data"))
			e.until("a", says(oam.ConditionWorkflow, "data exists but not managed by any application now"))
			e.app("a", configs("- {name: take, type: take-over, properties: {"+everyConfigMap+"}}", "data"))
			e.until("a", inPhase(oam.PhaseRunning))
			e.becomes("data", owned, e.here(e.ns, "data"))
		})
	}
}

// TestWhatIsReadOnlyByNowIsNotDeleted checks an object that an Application has made and then leaves
// alone by a read-only policy.
func TestWhatIsReadOnlyByNowIsNotDeleted(t *testing.T) {
	const readOnly = "- {name: look, type: read-only, properties: {rules: [{selector: {resourceNames: [data]}}]}}\n"
	for name, leave := range map[string]func(e *env){
		"with the application": func(e *env) {
			e.delete(applications, "a")
			e.gone(applications, "a")
		},
		"when it leaves the application": func(e *env) {
			e.app("a", configs(readOnly, "other"))
			e.until("a", inPhase(oam.PhaseRunning))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			e.app("a", configs(collects("none"), "data", "other"))
			e.until("a", inPhase(oam.PhaseRunning))
			e.app("a", configs(readOnly, "data", "other"))
			e.until("a", inPhase(oam.PhaseRunning))
			leave(e)
			e.becomes("data", released, e.here(e.ns, "data"))
		})
	}
}
