package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// behindProxy runs a controller for only the test's namespace until the test ends. decide may make
// the controller's requests fail.
func (e *env) behindProxy(decide func(*faultproxy.Request) faultproxy.Fault) {
	e.Helper()
	elsewhere.Store(e.ns, true)
	e.Cleanup(func() { elsewhere.Delete(e.ns) })
	p, err := localtest.Proxy(e.c)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(p.Close)
	p.Decide(decide)
	stop, err := runAt(p.REST(e.c.ManagerRESTConfig()), controller.Config{
		IdleAfter: 20 * time.Millisecond, Metrics: prometheus.NewRegistry(), Owns: func(key string) bool { return strings.HasPrefix(key, e.ns+"/") },
	}, func(w apiwriter.Writer) apiwriter.Writer { return w })
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(stop)
}

// TestAFailureThatHasMendedItselfIsNotSaid checks writes that are carried out but answered with an
// error, as a proxy between manager and server may do. The Application reports the failure only
// until the watch shows the object as it should be.
func TestAFailureThatHasMendedItselfIsNotSaid(t *testing.T) {
	e := connect(t)
	var mu sync.Mutex
	refused := map[string]int{}
	e.behindProxy(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Namespace != e.ns || r.Resource != "configmaps" || !r.Write() {
			return f
		}
		mu.Lock()
		defer mu.Unlock()
		if refused[r.Verb]++; refused[r.Verb] == 1 {
			f.Worked, f.Answer = true, http.StatusForbidden
		}
		return f
	})
	ready := func(a *oam.Application) error {
		if err := inPhase(oam.PhaseRunning)(a); err != nil {
			return err
		}
		for _, c := range a.Status.Conditions {
			if c.Status != "True" {
				return fmt.Errorf("its condition %s is %s: %s", c.Type, c.Status, c.Message)
			}
		}
		return nil
	}
	once := func(verb string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if refused[verb] != 1 {
			t.Errorf("there were %d requests to %s, want the one that was refused", refused[verb], verb)
		}
	}
	e.app("shop", withComponents("", "one", "two"))
	e.until("shop", ready)
	mu.Lock()
	creates := refused["create"]
	mu.Unlock()
	if creates != 2 {
		t.Errorf("%d creates were made, want one of each object", creates)
	}
	// The server deletes an object, and the answer says that it did not.
	e.app("shop", withComponents("", "one"))
	e.gone(configMaps, "two")
	e.until("shop", ready)
	once("delete")
}

// TestAnApplicationThatIsMadeAgainBeforeItsRecordIsGone checks an Application whose finalizers
// another client removes, and which is created again while the first one's tracker is being
// deleted. The second is deployed as a new Application.
func TestAnApplicationThatIsMadeAgainBeforeItsRecordIsGone(t *testing.T) {
	e := connect(t)
	asked, goes := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e.behindProxy(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Resource == "resourcetrackers" && r.Verb == "delete" && strings.HasSuffix(r.Name, "-"+e.ns) {
			once.Do(func() { close(asked) })
			<-goes
		}
		return f
	})
	e.app("again", withComponents("", "one"))
	e.until("again", inPhase(oam.PhaseRunning))
	e.delete(applications, "again")
	<-asked
	finalizers := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(t.Context(), "again", types.MergePatchType, finalizers, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.gone(applications, "again")
	e.app("again", withComponents("", "one"))
	e.until("again", func(a *oam.Application) error {
		if a.Finalizers == nil {
			return fmt.Errorf("nobody holds it yet")
		}
		return nil
	})
	close(goes)
	e.until("again", func(a *oam.Application) error {
		if err := inPhase(oam.PhaseRunning)(a); err != nil {
			return err
		}
		if a.Status.LatestRevision == nil || a.Status.LatestRevision.Name != "again-v1" {
			return fmt.Errorf("its revision is %+v", a.Status.LatestRevision)
		}
		return nil
	})
	e.eventually("its record", func() error {
		_, err := e.dyn.Resource(trackers).Get(t.Context(), "again-v1-"+e.ns, metav1.GetOptions{})
		return err
	})
}

// TestAnApplicationRevisionOfAnotherSpecIsReplaced checks an ApplicationRevision that a manager
// wrote which ended before it stored that there is such a revision. The spec has changed since.
func TestAnApplicationRevisionOfAnotherSpecIsReplaced(t *testing.T) {
	e := start(t)
	u := e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, labels: {controller.core.oam.dev/pause: "true"}}
` + "spec:\n" + indent(withComponents("", "one")))
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: ApplicationRevision
metadata:
  name: shop-v1
  labels: {app.oam.dev/name: shop, app.oam.dev/app-revision-hash: other}
  ownerReferences: [{apiVersion: core.oam.dev/v1beta1, kind: Application, name: shop, uid: ` + string(u.GetUID()) + `, controller: true}]
spec: {application: {apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: shop}, spec: {components: [{name: other, type: worker}]}}}
`)
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, annotations: {app.oam.dev/publishVersion: stable}}
` + "spec:\n" + indent(withComponents("", "one")))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.eventually("the revision", func() error {
		r, err := e.get(oam.GroupVersion.WithResource("applicationrevisions"), "shop-v1")
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(r.Object, "spec", "application", "spec", "components")
		if len(list) != 1 || list[0].(map[string]any)["name"] != "one" {
			return fmt.Errorf("its components are %v", list)
		}
		return nil
	})
}

// TestTheRevisionThatAPublishVersionIsDeployedWithIsKept checks a definition that changes often.
// The spec that an Application is deployed with refers to the first revision; the spec that it has
// since, and which takes effect with another publishVersion, does not.
func TestTheRevisionThatAPublishVersionIsDeployedWithIsKept(t *testing.T) {
	e := start(t)
	revisions := oam.GroupVersion.WithResource("definitionrevisions")
	define := func(number int) {
		e.apply(fmt.Sprintf(`
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: note}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "ConfigMap", data: number: "%d"}'}}
`, number))
		e.eventually("the revision", func() error {
			_, err := e.get(revisions, fmt.Sprintf("note-v%d", number))
			return err
		})
	}
	deploy := func(kind string) {
		e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: pinned, annotations: {app.oam.dev/publishVersion: first}}
spec: {components: [{name: one, type: ` + kind + `}]}
`)
		e.until("pinned", inPhase(oam.PhaseRunning))
	}
	define(1)
	deploy("note@v1")
	deploy("note")
	for number := 2; number <= 24; number++ {
		define(number)
	}
	e.gone(revisions, "note-v3")
	if _, err := e.get(revisions, "note-v1"); err != nil {
		t.Error(err)
	}
}
