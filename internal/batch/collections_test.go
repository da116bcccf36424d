package batch

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/podset"
)

// TestEachPodIsInOneCollection draws jobs, and checks that the selectors of the requests divide their
// pods.
func TestEachPodIsInOneCollection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &collection{namespace: "ns", job: "j", among: podset.All}
		for range rapid.IntRange(1, 3).Draw(t, "tasks") {
			from := rapid.IntRange(0, 50).Draw(t, "first index")
			for i := range rapid.IntRange(1, 700).Draw(t, "pods") {
				q.indices = append(q.indices, from+i)
				q.pods = append(q.pods, podset.Deletion{})
			}
		}
		indices := slices.Clone(q.indices)
		list := q.selections()
		if len(list) > collectionsMax {
			t.Fatalf("%d requests", len(list))
		}
		counts := make([]int, len(list))
		for _, index := range indices {
			of := labels.Set{api.JobNameKey: "j", api.TaskIndexKey: strconv.Itoa(index)}
			in := 0
			for i, s := range list {
				selector, err := labels.Parse(s.Labels)
				if err != nil {
					t.Fatal(err)
				}
				if selector.Matches(of) {
					in++
					counts[i]++
				}
			}
			if in != 1 {
				t.Fatalf("index %d is in %d of %v", index, in, list)
			}
		}
		if _, largest := ranges(q.indices, requestsFor(len(q.pods))); largest != slices.Max(counts) {
			t.Fatalf("the largest request is said to have %d pods, and has %d", largest, slices.Max(counts))
		}
	})
}

func TestWhichPodsAreDeletedByCollections(t *testing.T) {
	spread := func(n, tasks int) (out []int) {
		for i := range n {
			out = append(out, i/tasks)
		}
		return out
	}
	for name, test := range map[string]struct {
		indices []int
		want    bool
	}{
		"few pods":                      {spread(collectionMin-1, 1), false},
		"many pods of a task":           {spread(10000, 1), true},
		"many pods of many tasks":       {spread(10000, 100), true},
		"many tasks of one pod":         {make([]int, 10000), false},
		"a few pods more in some tasks": {append(spread(200, 1), spread(20, 1)...), true},
	} {
		q := &collection{indices: test.indices, pods: make([]podset.Deletion, len(test.indices))}
		if got := q.worthwhile(); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestEndedPodsAreNotSelectedUnlessAllAre(t *testing.T) {
	q := &collection{job: "j", among: podset.Unended, indices: []int{0}, pods: make([]podset.Deletion, 1)}
	want := []apiwriter.Selection{{Labels: "volcano.sh/job-name=j", Fields: "status.phase!=Succeeded,status.phase!=Failed"}}
	if diff := cmp.Diff(want, q.selections()); diff != "" {
		t.Error(diff)
	}
	q.among, want[0].Fields = podset.All, ""
	if diff := cmp.Diff(want, q.selections()); diff != "" {
		t.Error(diff)
	}
}

func TestIdentityToImpersonate(t *testing.T) {
	for name, test := range map[string]struct {
		user authenticationv1.UserInfo
		want *apiwriter.Identity
	}{
		"a service account": {authenticationv1.UserInfo{Username: "system:serviceaccount:ns:m", Groups: []string{"system:serviceaccounts", "system:authenticated"}},
			&apiwriter.Identity{User: "system:serviceaccount:ns:m"}},
		"a user": {authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}},
			&apiwriter.Identity{User: "admin", Groups: []string{"system:masters"}}},
	} {
		if diff := cmp.Diff(test.want, identityOf(test.user)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestThePolicyOfRunsIsInstalled compares the constants with the policy's text.
func TestThePolicyOfRunsIsInstalled(t *testing.T) {
	for _, o := range config.Policies() {
		if o.GetName() != RunsPolicy || o.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		text, err := o.MarshalJSON()
		if err != nil || !strings.Contains(string(text), "['"+RunExtra+"']") || !strings.Contains(string(text), "'"+api.JobVersionKey+"'") {
			t.Errorf("%v: %s", err, text)
		}
		return
	}
	t.Errorf("there is no policy %s", RunsPolicy)
}
