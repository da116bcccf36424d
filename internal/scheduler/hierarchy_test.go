package scheduler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

func TestHierarchyOfAnnotations(t *testing.T) {
	for _, tc := range []struct {
		path, weights, parent string
		want                  share.Queue
		groups                []share.Queue
	}{
		{path: "", want: share.Queue{Name: "q", Weight: 5}},
		{path: "root/q", weights: "1/3", want: share.Queue{Name: "q", Parent: "root", Weight: 3}},
		{path: "root/a/b/q", weights: "1/2/0.3/8.6", want: share.Queue{Name: "q", Parent: "hierarchy:root/a/b", Weight: 9}, groups: []share.Queue{
			{Name: "hierarchy:root/a", Parent: "root", Weight: 2}, {Name: "hierarchy:root/a/b", Parent: "hierarchy:root/a", Weight: 1},
		}},
		{path: "a/q", weights: "2/8", want: share.Queue{Name: "q", Parent: "hierarchy:root/a", Weight: 8}, groups: []share.Queue{
			{Name: "hierarchy:root/a", Parent: "root", Weight: 2},
		}},
		{path: "root/a/q", weights: "1/2", want: share.Queue{Name: "q", Weight: 5}},
		{path: "root/a/q", weights: "1/2/-1", want: share.Queue{Name: "q", Weight: 5}},
		{path: "root/a/q", weights: "1/NaN/1", want: share.Queue{Name: "q", Weight: 5}},
		{path: "root//q", weights: "1/1/1", want: share.Queue{Name: "q", Weight: 5}},
		{path: "root/a/q", weights: "1/2/8", parent: "p", want: share.Queue{Name: "q", Parent: "p", Weight: 5}},
	} {
		object := &schedulingv1beta1.Queue{ObjectMeta: metav1.ObjectMeta{Name: "q", Annotations: map[string]string{
			schedulingv1beta1.HierarchyAnnotation: tc.path, schedulingv1beta1.HierarchyWeightsAnnotation: tc.weights,
		}}}
		q := share.Queue{Name: "q", Parent: tc.parent, Weight: 5}
		groups := inHierarchy(object, &q)
		if diff := cmp.Diff(tc.want, q) + cmp.Diff(tc.groups, groups); diff != "" {
			t.Errorf("%s, %s: %s", tc.path, tc.weights, diff)
		}
	}
}
