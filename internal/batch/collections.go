package batch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
)

// RunsPolicy is the name of the admission policy that refuses to delete pods of other runs than the
// one that a request names in RunExtra: config/policies/pods-of-runs.yaml.
const RunsPolicy = "pods-of-runs.batch.lockstep.dev"

// RunExtra is the key of the user's extra that names a run, as JOBUID/VERSION.
const RunExtra = "lockstep.dev/run"

const (
	// collectionMin is the number of pods of a run from which they are deleted by collections. Fewer
	// are deleted one by one in a tenth of a second.
	collectionMin = 100
	// collectionsMax is the maximum number of requests for the pods of a run. The API server deletes the
	// pods of one request one after the other.
	collectionsMax = 16
	// manyPods is the number of pods for which the API server may need longer than the minute that it
	// allows a request. The requests are made again then, so they are at most collectionsOfMany: with the
	// check, no more than 20 after two minutes.
	manyPods          = 5000
	collectionsOfMany = 9
	// collectionPods is the minimum number of pods of a request.
	collectionPods = 32
	// checksMax is the maximum number of pods with which the policy is checked before one collection:
	// a pod that is gone proves nothing.
	checksMax = 3
)

// collections deletes the many pods of a run by few requests, each for the pods of a range of
// indices:
//
//	who am I ──▶ dry run of a deletion that the policy must refuse ──▶ requests in parallel ──▶ end
//	   └─ not known, not refused, or not allowed ──▶ leave
//
// Each request is made with impersonation of the manager itself, and with the run as an extra
// attribute. The policy RunsPolicy compares each pod with it in the transaction that deletes the pod.
// So a request that reaches the server late, or that the server carries out late, deletes no pod of
// another run, of another job or of a user that has got the name of a pod meanwhile.
//
// Its methods are safe for concurrent use.
type collections struct {
	c *Controller

	mu   sync.Mutex
	self *apiwriter.Identity // the manager's own user; nil until it is known
	said map[string]bool     // reasons for single deletions that have been logged
}

// collection is the deletion of pods of one run.
type collection struct {
	owner     string // fairness key of the writes
	namespace string
	job       string
	run       string // JOBUID/VERSION
	among     podset.Among
	reason    string
	pods      []podset.Deletion
	indices   []int // of pods
	// leave is called instead of the requests if the pods cannot be deleted in this way; end is
	// called when all requests have been answered, and is told whether all have succeeded. Nothing is
	// called if the writer stops.
	leave func()
	end   func(succeeded bool)
}

// runOf returns the run of a pod as JOBUID/VERSION, or "" if the pod has no run.
func runOf(p *corev1.Pod) string {
	owner, version := jobOf(p), p.Annotations[api.JobVersionKey]
	if owner == nil || version == "" {
		return ""
	}
	return string(owner.UID) + "/" + version
}

// deleteMany implements podset.Config.DeleteMany.
func (k *collections) deleteMany(s *podset.Set, list []podset.Deletion) (rest []podset.Deletion) {
	key, uid := s.Owner()
	byRun := map[string]*collection{}
	for _, d := range list {
		p, found := k.c.pods.Pods.Get(key.Namespace, d.Name)
		if d.Among == podset.Alone || !found || p.UID != d.UID || !k.add(byRun, key, p, d) {
			rest = append(rest, d)
		}
	}
	for _, run := range slices.Sorted(maps.Keys(byRun)) {
		q := byRun[run]
		if !q.worthwhile() {
			rest = append(rest, q.pods...)
			continue
		}
		s.BeginDeletions(q.pods)
		after := func(do func(*podset.Set)) {
			k.c.pods.Post(key, uid, func(s *podset.Set) podset.Event { do(s); return podset.Event{} })
		}
		q.end = func(succeeded bool) { after(func(s *podset.Set) { s.EndDeletions(q.pods, succeeded) }) }
		q.leave = func() {
			after(func(s *podset.Set) {
				for _, d := range q.pods {
					s.DeletePod(d)
				}
			})
		}
		k.begin(q)
	}
	return rest
}

// deleteDependents deletes the pods of a job that is deleted with its dependents, which the garbage
// collector does, too, but only some twenty pods per second. What it cannot delete by collections is
// left to the garbage collector, which knows whether a pod still depends on the job.
func (k *collections) deleteDependents(r *record) {
	if r.job == nil || slices.Contains(r.job.Finalizers, metav1.FinalizerOrphanDependents) {
		return
	}
	byRun := map[string]*collection{}
	for _, p := range k.c.Informers.Pods.ByIndex(informer.PodsByController, string(r.uid)) {
		if p.DeletionTimestamp == nil {
			k.add(byRun, r.key, p, podset.Deletion{Name: p.Name, UID: p.UID, Reason: "job-deleted", Among: podset.All})
		}
	}
	for _, run := range slices.Sorted(maps.Keys(byRun)) {
		if q := byRun[run]; q.worthwhile() {
			q.leave, q.end = func() {}, func(bool) {}
			k.begin(q)
		}
	}
}

// add adds a pod to the collection of its run, and reports whether the pod can be a part of one.
func (k *collections) add(byRun map[string]*collection, key types.NamespacedName, p *corev1.Pod, d podset.Deletion) bool {
	run := runOf(p)
	index, err := strconv.ParseUint(p.Labels[api.TaskIndexKey], 10, indexBits)
	if run == "" || err != nil || p.Labels[api.JobNameKey] != key.Name {
		return false
	}
	q := byRun[run]
	if q == nil {
		q = &collection{owner: gangKey(key), namespace: key.Namespace, job: key.Name, run: run, among: d.Among, reason: d.Reason}
		byRun[run] = q
	}
	if q.among != d.Among {
		return false
	}
	q.pods, q.indices = append(q.pods, d), append(q.indices, int(index))
	return true
}

// worthwhile reports whether a collection is better than single deletions: there are many pods, and
// their indices divide them evenly.
func (q *collection) worthwhile() bool {
	if len(q.pods) < collectionMin {
		return false
	}
	n := requestsFor(len(q.pods))
	_, largest := ranges(q.indices, n)
	return largest <= 2*(len(q.pods)+n-1)/n
}

// requestsFor returns how many requests delete n pods.
func requestsFor(n int) int {
	if n > manyPods {
		return collectionsOfMany
	}
	return min(max(n/collectionPods, 1), collectionsMax)
}

// ranges divides indices, which it sorts, into at most n ranges of about the same number of pods. It
// returns the first index of each range after the first, and the number of pods of the largest range.
func ranges(indices []int, n int) (starts []int, largest int) {
	slices.Sort(indices)
	last := 0
	for i := 1; i < n; i++ {
		at := len(indices) * i / n
		for at > 0 && at < len(indices) && indices[at] == indices[at-1] {
			at++ // pods of one index, of several tasks, stay together
		}
		if at <= last || at >= len(indices) {
			continue
		}
		starts, largest, last = append(starts, indices[at]), max(largest, at-last), at
	}
	return starts, max(largest, len(indices)-last)
}

// selections returns what the requests of a collection select.
func (q *collection) selections() []apiwriter.Selection {
	starts, _ := ranges(q.indices, requestsFor(len(q.pods)))
	of := api.JobNameKey + "=" + q.job
	fields := ""
	if q.among == podset.Unended {
		fields = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	}
	out := make([]apiwriter.Selection, len(starts)+1)
	for i := range out {
		labels := of
		if i > 0 {
			labels += fmt.Sprintf(",%s>%d", api.TaskIndexKey, starts[i-1]-1)
		}
		if i < len(starts) {
			labels += fmt.Sprintf(",%s<%d", api.TaskIndexKey, starts[i])
		}
		out[i] = apiwriter.Selection{Namespace: q.namespace, Labels: labels, Fields: fields}
	}
	return out
}

func (q *collection) meta(as *apiwriter.Identity, run string) apiwriter.Meta {
	return apiwriter.Meta{Owner: q.owner, Reason: q.reason, As: &apiwriter.Identity{
		User: as.User, Groups: as.Groups, Extra: map[string]string{RunExtra: run},
	}}
}

// begin deletes the pods of q.
func (k *collections) begin(q *collection) {
	k.mu.Lock()
	self := k.self
	k.mu.Unlock()
	if self != nil {
		k.check(q, self, 0)
		return
	}
	m := apiwriter.Meta{Owner: q.owner, Reason: "own-user"}
	k.c.Writer.Create(m, &authenticationv1.SelfSubjectReview{}, func(o apiwriter.Object, err error) {
		review, ok := o.(*authenticationv1.SelfSubjectReview)
		if err != nil || !ok {
			k.leave(q, "the API server does not say who the manager is", err)
			return
		}
		self := identityOf(review.Status.UserInfo)
		k.mu.Lock()
		k.self = self
		k.mu.Unlock()
		k.check(q, self, 0)
	})
}

// identityOf returns what has to be impersonated to act as this user. The server itself adds the
// groups of service accounts and of all users.
func identityOf(u authenticationv1.UserInfo) *apiwriter.Identity {
	id := &apiwriter.Identity{User: u.Username}
	if strings.HasPrefix(u.Username, "system:serviceaccount:") {
		return id
	}
	for _, g := range u.Groups {
		if g != "system:authenticated" {
			id.Groups = append(id.Groups, g)
		}
	}
	return id
}

// check sees whether the policy is in effect: it must refuse the dry run of a deletion whose request
// names another run than the pod's. tries is the number of pods tried before.
func (k *collections) check(q *collection, self *apiwriter.Identity, tries int) {
	d := q.pods[tries]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: q.namespace, Name: d.Name, UID: d.UID}}
	k.c.Writer.Delete(q.meta(self, "none"), pod, apiwriter.DeleteOptions{DryRun: true}, func(err error) {
		switch {
		case err == nil:
			k.leave(q, "the policy "+RunsPolicy+" is not in effect: 'lockstep install' brings it", nil)
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), RunsPolicy):
			k.send(q, self)
		case (apierrors.IsNotFound(err) || apierrors.IsConflict(err)) && tries+1 < min(checksMax, len(q.pods)):
			k.check(q, self, tries+1)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			q.leave() // the pods are leaving already
		default:
			k.leave(q, "it cannot be seen whether the policy "+RunsPolicy+" is in effect", err)
		}
	})
}

// send sends the requests.
func (k *collections) send(q *collection, self *apiwriter.Identity) {
	list := q.selections()
	var mu sync.Mutex
	left, halted, succeeded := len(list), false, true
	for _, selection := range list {
		k.c.Writer.DeletePods(q.meta(self, q.run), selection, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			left--
			switch {
			case errors.Is(err, apiwriter.ErrStopped):
				halted = true
			case err != nil:
				succeeded = false
				k.c.Log.Info("the API server has not deleted all pods of a collection", "job", q.owner, "labels",
					selection.Labels, "error", err)
			}
			if left == 0 && !halted {
				q.end(succeeded)
			}
		})
	}
}

// leave gives up q, and logs the reason once.
func (k *collections) leave(q *collection, why string, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		return
	}
	k.mu.Lock()
	if !k.said[why] {
		if k.said == nil {
			k.said = map[string]bool{}
		}
		k.said[why] = true
		k.c.Log.Warn("the pods of a run are deleted one by one", "reason", why, "error", err)
	}
	k.mu.Unlock()
	q.leave()
}
