package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
)

func TestUnusedNodes(t *testing.T) {
	watched := func(uid, at, version string) *wf.Workflow {
		return &wf.Workflow{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: at}, Status: wf.WorkflowStatus{OffloadNodeStatusVersion: version}}
	}
	got := unusedNodes(
		map[string][]string{"deleted": {"a", "b"}, "runs": {"old", "now"}, "behind": {"c"}, "malformed": {"d"}, "small-again": {"e"}, "seen-late": {"f"}},
		informer.Versions{At: "20", Of: map[types.UID]string{"runs": "10", "behind": "15", "malformed": "3", "small-again": "11"}},
		[]*wf.Workflow{watched("runs", "10", "now"), watched("behind", "14", "b"), watched("small-again", "12", ""), watched("seen-late", "5", "f")})
	want := map[string][]string{"deleted": {"a", "b"}, "runs": {"old"}, "small-again": {"e"}, "seen-late": {"f"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
