package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// trackersAre waits until the trackers of an Application are those, each as NAME or NAME:OBJECT,OBJECT.
// The namespace at the end of names is left out.
func (e *env) trackersAre(app string, want ...string) {
	e.Helper()
	e.eventually("trackers of "+app, func() error {
		list, err := e.dyn.Resource(trackers).List(e.Context(), metav1.ListOptions{
			LabelSelector: oam.AppNameLabel + "=" + app + "," + oam.AppNamespaceLabel + "=" + e.ns,
		})
		if err != nil {
			return err
		}
		var got []string
		for i := range list.Items {
			rt := &list.Items[i]
			name := strings.TrimSuffix(rt.GetName(), "-"+e.ns)
			managed, _, _ := unstructured.NestedSlice(rt.Object, "spec", "managedResources")
			var objects []string
			for _, m := range managed {
				objects = append(objects, m.(map[string]any)["name"].(string))
			}
			slices.Sort(objects)
			got = append(got, name+":"+strings.Join(objects, ","))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})
}

// TestAGenerationHasATracker checks the trackers of an Application that changes: there is one for the
// present generation, and none for those before.
func TestAGenerationHasATracker(t *testing.T) {
	e := start(t)
	e.app("shop", withComponents("", "one"))
	e.trackersAre("shop", "shop-v1:one")
	e.app("shop", withComponents("", "one", "two"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.trackersAre("shop", "shop-v2:one,two")
	e.app("shop", withComponents("", "two"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.trackersAre("shop", "shop-v3:two")
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: shop, annotations: {app.oam.dev/publishVersion: alpha}}\nspec:\n" + indent(withComponents("", "two")))
	e.trackersAre("shop", "shop-alpha:two")
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	e.trackersAre("shop")
}

// TestTrackersOfKeptObjectsRemain checks an Application that keeps what leaves its spec: the objects of
// an earlier generation go when a client deletes its tracker, and all go with the Application.
func TestTrackersOfKeptObjectsRemain(t *testing.T) {
	e := start(t)
	keep := "policies:\n- {name: gc, type: garbage-collect, properties: {keepLegacyResource: true, rules: [{selector: {resourceNames: [bound]}, strategy: onAppDelete}]}}\n"
	e.app("shop", withComponents(keep, "one"))
	e.trackersAre("shop", "shop-v1:one")
	e.app("shop", withComponents(keep, "two", "bound"))
	e.trackersAre("shop", "shop-v1:one", "shop-v2:bound,one,two")
	e.app("shop", withComponents(keep, "three"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.trackersAre("shop", "shop-v1:one", "shop-v2:two", "shop-v3:bound,one,three,two")
	remove := func(name string) {
		t.Helper()
		if err := e.dyn.Resource(trackers).Delete(t.Context(), name+"-"+e.ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove("shop-v2")
	e.trackersAre("shop", "shop-v1:one", "shop-v3:bound,one,three")
	if _, err := e.get(configMaps, "two"); err == nil { // its tracker goes last
		t.Error("the object of the deleted tracker is there")
	}
	for _, name := range []string{"one", "three", "bound"} {
		if _, err := e.get(configMaps, name); err != nil {
			t.Error(err)
		}
	}
	// Somebody deletes a kept object: its tracker has nothing left.
	e.delete(configMaps, "one")
	e.trackersAre("shop", "shop-v3:bound,three")
	e.app("shop", withComponents(keep, "four"))
	e.trackersAre("shop", "shop-v3:three", "shop-v4:bound,four,three")
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	e.trackersAre("shop")
	for _, name := range []string{"three", "four", "bound"} {
		e.gone(configMaps, name)
	}
}

// TestNamesOfTrackersDoNotCollide checks two Applications whose trackers would have one name.
func TestNamesOfTrackersDoNotCollide(t *testing.T) {
	e := start(t)
	e.app("shop", withComponents("", "one"))
	e.trackersAre("shop", "shop-v1:one")
	// The part of the namespace before its first hyphen is the end of the other one's version.
	first, rest, ok := strings.Cut(e.ns, "-")
	if !ok {
		t.Fatalf("the namespace %s has no hyphen", e.ns)
	}
	e.namespace(rest)
	other := *e
	other.ns = rest
	other.apply("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: shop, annotations: {app.oam.dev/publishVersion: v1-" + first + "}}\nspec:\n" + indent(withComponents("", "other")))
	other.until("shop", inPhase(oam.PhaseRunning))
	other.trackersAre("shop", "shop-v1:other")
	e.app("shop", withComponents("", "one", "two"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.trackersAre("shop", "shop-v2:one,two")
	other.delete(applications, "shop")
	other.gone(applications, "shop")
	e.trackersAre("shop", "shop-v2:one,two")
}
