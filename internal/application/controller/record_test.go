package controller_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// TestAnApplicationSaysThatItsRecordCannotBeRead checks that nothing is created, changed or deleted
// for an Application whose tracker cannot be read, that others are not affected, and that the
// Application goes on when its tracker is repaired.
func TestAnApplicationSaysThatItsRecordCannotBeRead(t *testing.T) {
	e := start(t)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	zeros := bytes.Repeat([]byte{' '}, 1<<20)
	for range 20 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := base64.StdEncoding.EncodeToString(b.Bytes())
	for _, name := range []string{"waits", "leaves"} {
		manifest := fmt.Sprintf(`{apiVersion: core.oam.dev/v1beta1, kind: ResourceTracker,
  metadata: {name: %[1]s.%[2]s, labels: {app.oam.dev/name: %[2]s, app.oam.dev/namespace: %[1]s}},
  spec: {type: versioned, applicationGeneration: 1, compression: {type: gzip, data: %[3]s}}}`, e.ns, name, bomb)
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := e.dyn.Resource(trackers).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.apply("{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: " + name + ", finalizers: [" + oam.ResourceTrackerFinalizer + "]},\n" +
			" spec: {components: [{name: " + name + ", type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}}}]}}")
	}
	said := []string{"the ResourceTracker " + e.ns + ".waits", "16777216 bytes"}
	e.until("waits", says(oam.ConditionParsed, said...))
	e.until("waits", says(oam.ConditionReady, said...))
	e.delete(applications, "leaves")
	e.gone(applications, "leaves") // the tracker's plain list of objects is enough to remove them
	if _, err := e.get(configMaps, "waits"); err == nil {
		t.Error("its object was made")
	}
	e.app("other", "components: [{name: other, type: raw, properties: {apiVersion: v1, kind: ConfigMap, metadata: {name: other}}}]")
	e.until("other", inPhase(oam.PhaseRunning))
	mended := []byte(`{"spec":{"compression":null}}`)
	if _, err := e.dyn.Resource(trackers).Patch(t.Context(), e.ns+".waits", types.MergePatchType, mended, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.until("waits", inPhase(oam.PhaseRunning))
}

// TestARecordThatTheWatchHasNotShownIsNotCreatedAgainAndAgain checks that the manager goes on from
// a ResourceTracker that it had not seen when it was about to create one of that name.
func TestARecordThatTheWatchHasNotShownIsNotCreatedAgainAndAgain(t *testing.T) {
	e := connect(t)
	var creates atomic.Int32
	asked, there := make(chan struct{}), make(chan struct{})
	e.behindProxy(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Resource == "resourcetrackers" && r.Verb == "create" {
			f.Before = func() {
				if creates.Add(1) == 1 {
					close(asked)
				}
				<-there
			}
		}
		return f
	})
	e.app("late", withComponents("", "one"))
	<-asked
	u := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(fmt.Sprintf(`{apiVersion: core.oam.dev/v1beta1, kind: ResourceTracker,
  metadata: {name: late-v1-%[1]s, labels: {app.oam.dev/name: late, app.oam.dev/namespace: %[1]s}, annotations: {lockstep.dev/record: "1"}},
  spec: {type: versioned, applicationGeneration: 1, compression: {type: gzip, data: abc}}}`, e.ns)), &u.Object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.dyn.Resource(trackers).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	close(there)
	e.until("late", says(oam.ConditionParsed, "the ResourceTracker late-v1-"+e.ns))
	if n := creates.Load(); n < 1 || n > 10 {
		t.Errorf("it was created %d times; want a few", n)
	}
	if _, err := e.get(configMaps, "one"); err == nil {
		t.Error("its object was made")
	}
}
