package controller_test

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

// identities is a Writer that notes who patches ConfigMaps.
type identities struct {
	apiwriter.Writer
	mu   sync.Mutex
	seen []string
}

func (w *identities) Patch(meta apiwriter.Meta, o apiwriter.Object, kind types.PatchType, data []byte, done func(apiwriter.Object, error)) {
	if meta.Resource == "configmaps" {
		who := "the manager"
		if meta.As != nil {
			who = meta.As.User
		}
		w.mu.Lock()
		w.seen = append(w.seen, who)
		w.mu.Unlock()
	}
	w.Writer.Patch(meta, o, kind, data, done)
}

// TestAConfinedApplicationIsConfinedWhileItIsDeleted checks that a manager that applications act as
// releases the objects of an Application that names a service account as that account, also if it has
// only just been started.
func TestAConfinedApplicationIsConfinedWhileItIsDeleted(t *testing.T) {
	e := connect(t)
	elsewhere.Store(e.ns, true)
	w := &identities{}
	run := func() (stop func()) {
		t.Helper()
		stop, err := runWith(e.c, controller.Config{ActAsManager: true, Owns: e.owns, Metrics: prometheus.NewRegistry()}, func(real apiwriter.Writer) apiwriter.Writer {
			w.Writer = real
			return w
		})
		if err != nil {
			t.Fatal(err)
		}
		return stop
	}
	e.user("system:serviceaccount:"+e.ns+":low", "edit")
	stop := run()
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: own, annotations: {app.oam.dev/service-account-name: low}, finalizers: [app.oam.dev/orphan-resource]}\nspec:\n" +
		indent("components: [{name: one, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}}]"))
	e.until("own", inPhase(oam.PhaseRunning))
	stop()
	e.delete(applications, "own")
	defer run()()
	e.gone(applications, "own")
	if len(w.seen) != 1 || w.seen[0] != "system:serviceaccount:"+e.ns+":low" {
		t.Errorf("the object was released by %q", w.seen)
	}
	if one, err := e.get(configMaps, "one"); err != nil || one.GetLabels()[oam.AppNameLabel] != "" {
		t.Errorf("the object: %v %v", one, err)
	}
}
