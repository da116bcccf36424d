package deploy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestPlacesAreKeptUntilWhatWasMadeIsTakenUp checks that an Application keeps its place at the
// start limiter until controllers have observed its objects, for observeTimeout at most, and while its
// writes are under way, unless their cluster does not answer.
func TestPlacesAreKeptUntilWhatWasMadeIsTakenUp(t *testing.T) {
	now := time.Now()
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	far, local := objects.NewFake("far", nil), objects.NewFake("", nil, gvk)
	d := &Deployer{Access: Access{Targets: objects.NewFakeTargets(local, far)}, Now: func() time.Time { return now }}
	here, there := plan.Ref{GVK: gvk, Namespace: "ns", Name: "web"}, plan.Ref{Cluster: "far", GVK: gvk, Namespace: "ns", Name: "web"}
	a := &State{
		Owner:  &records.Owner{Key: types.NamespacedName{Namespace: "ns", Name: "shop"}},
		Writes: records.Writes{}, Plan: &plan.Plan{Resources: []plan.Resource{{Ref: here}, {Ref: there}}},
	}
	a.Writes.EndObject("", nil, now)
	show := func(version, status string) {
		local.Objects.Put(gvk, &kubeclient.Raw{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "web", UID: "u", ResourceVersion: version,
				Labels: map[string]string{oam.AppNameLabel: "shop", oam.AppNamespaceLabel: "ns"},
			},
			JSON: []byte(`{"metadata":{},"status":` + status + `}`),
		})
	}
	expect := func(when string, keeps bool, again time.Duration) {
		t.Helper()
		if k, w := d.KeepsPlace(a); k != keeps || w != again {
			t.Errorf("%s: %v, again after %v, not %v, %v", when, k, w, keeps, again)
		}
	}
	show("1", "{}")
	expect("made", true, observeTimeout)
	now = now.Add(observeTimeout / 2)
	expect("still not seen", true, observeTimeout/2)
	show("2", `{"observedGeneration":1}`)
	expect("seen", false, 0)
	show("3", "{}")
	now = now.Add(observeTimeout)
	expect("for too long", false, 0)
	a.Writes.Start("tracker")
	a.Writes.Start(records.RefKey(there))
	expect("writing here and there", true, 0)
	a.Writes.Cancel("tracker")
	far.Answers.Sent(now)
	expect("writing where an answer may still come", true, silenceMax)
	now = now.Add(silenceMax / 4)
	expect("a while later", true, silenceMax*3/4)
	far.Answers.Sent(now)
	far.Answers.Answered(now)
	expect("another has been answered", true, silenceMax)
	now = now.Add(silenceMax)
	expect("writing where nobody answers", false, 0)
}
