package batch

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/scheduler"
)

// statusWriter keeps the last status write, which the test answers.
type statusWriter struct {
	apiwriter.Writer
	sent *scheduling.Queue
	done func(apiwriter.Object, error)
}

func (w *statusWriter) Status(_ apiwriter.Meta, o apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	w.sent, w.done = o.(*scheduling.Queue), done
}

type noUse struct{}

func (noUse) Use() map[string]corev1.ResourceList { return nil }

func (noUse) Past() map[string]scheduler.QueueUsage { return nil }

// TestUsageIsWrittenSeldom checks when the status of a queue gets what the queue has used.
func TestUsageIsWrittenSeldom(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	used := func(after time.Duration, changes int64, cpus string) map[string]scheduler.QueueUsage {
		u := scheduler.QueueUsage{Changes: changes}
		u.At = metav1.NewTime(began.Add(after))
		if cpus != "" {
			u.Average = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}
		}
		return map[string]scheduler.QueueUsage{"q": u}
	}
	written := &scheduling.QueueUsage{At: metav1.NewTime(began), Average: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	for name, c := range map[string]struct {
		has       *scheduling.QueueUsage
		past      []map[string]scheduler.QueueUsage // as the sweeps bring it
		otherwise bool                              // the status is written anyway
		want      string                            // CPUs in the next status
	}{
		"nobody asks for it":                        {written, []map[string]scheduler.QueueUsage{nil}, false, ""},
		"before the first sweep":                    {written, nil, true, "1"},
		"the scheduler does not know the queue yet": {written, []map[string]scheduler.QueueUsage{{}}, true, "1"},
		"nothing was ever used":                     {nil, []map[string]scheduler.QueueUsage{used(0, 0, "")}, false, ""},
		"the first time":                            {nil, []map[string]scheduler.QueueUsage{used(0, 1, "2")}, false, "2"},
		"after a restart at rest":                   {written, []map[string]scheduler.QueueUsage{used(time.Hour, 7, "2")}, false, "1"},
		"a week at rest": {
			written, []map[string]scheduler.QueueUsage{used(time.Minute, 7, "2"), used(7*24*time.Hour, 7, "3")}, false, "1",
		},
		"soon after a change":         {written, []map[string]scheduler.QueueUsage{used(time.Minute, 7, "2"), used(2*time.Minute, 8, "3")}, false, "1"},
		"five minutes after a change": {written, []map[string]scheduler.QueueUsage{used(time.Minute, 7, "2"), used(6*time.Minute, 8, "3")}, false, "3"},
		"with another write":          {written, []map[string]scheduler.QueueUsage{used(time.Minute, 7, "2")}, true, "2"},
		"the same again":              {written, []map[string]scheduler.QueueUsage{used(0, 7, "2")}, true, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			var r queueRecord
			queue := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Status: scheduling.QueueStatus{Usage: c.has}}
			for _, past := range c.past {
				r.remember(past, queue)
			}
			now, next := queue.Status, queue.Status
			if c.otherwise {
				next.State = scheduling.QueueOpen
			}
			r.addUsage(&now, &next)
			got := ""
			if next.Usage != nil {
				got = next.Usage.Average.Cpu().String()
			}
			if got != c.want {
				t.Errorf("the next status has %q CPUs, want %q", got, c.want)
			}
		})
	}
}

// TestACommandToAQueueOutlivesAConflict checks that a Command that comes while the status of its
// queue waits for the queue's present version is neither lost nor counted as carried out.
func TestACommandToAQueueOutlivesAConflict(t *testing.T) {
	versions := make(chan string, 2)
	versions <- "1"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		queue := func(version string) scheduling.Queue {
			q := scheduling.Queue{
				TypeMeta:   metav1.TypeMeta{APIVersion: scheduling.GroupVersion.String(), Kind: "Queue"},
				ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "u", ResourceVersion: version},
			}
			q.Status.State = scheduling.QueueOpen
			return q
		}
		if r.URL.Query().Get("watch") == "" {
			list := scheduling.QueueList{Items: []scheduling.Queue{queue(<-versions)}}
			list.APIVersion, list.Kind, list.ResourceVersion = scheduling.GroupVersion.String(), "QueueList", "1"
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case version := <-versions:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": queue(version)})
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close) // after the watch has ended with the context
	client, err := kubeclient.ForGroupVersion(&rest.Config{Host: server.URL}, nil, scheduling.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	set := &informer.Set{
		Queues: informer.New(client, "queues", informer.Options[*scheduling.Queue]{Indexes: map[string]func(*scheduling.Queue) []string{
			informer.QueuesByParent: func(q *scheduling.Queue) []string { return []string{q.Spec.Parent} },
		}}),
		Jobs:      informer.New(client, "jobs", informer.Options[*api.Job]{}),
		PodGroups: informer.New(client, "podgroups", informer.Options[*scheduling.PodGroup]{}),
	}
	writer := &statusWriter{}
	q, err := NewQueues(QueuesConfig{Informers: set, Use: noUse{}, Writer: writer})
	if err != nil {
		t.Fatal(err)
	}
	go set.Queues.Run(t.Context())
	seen := func(version string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if now, found := set.Queues.Get("", "q"); found && now.ResourceVersion == version {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the watch does not show version %s", version)
			}
		}
	}
	key := types.NamespacedName{Name: "q"}
	var answers []error
	closeIt := func() {
		t.Helper()
		if !q.Do("q", bus.CloseQueueAction, func(err error) { answers = append(answers, err) }) {
			t.Fatal("the queue has no record")
		}
		q.loop.Take(key) // the loop is not running
	}

	seen("1")
	q.loop.Take(key)
	closeIt()
	if writer.sent == nil || writer.sent.Status.State != scheduling.QueueClosed || len(answers) != 0 {
		t.Fatalf("sent %+v, answers %v", writer.sent, answers)
	}
	writer.done(nil, apierrors.NewConflict(schema.GroupResource{Resource: "queues"}, "q", errors.New("changed")))
	if len(answers) != 1 || !apierrors.IsConflict(answers[0]) {
		t.Fatalf("after the conflict the answers are %v", answers)
	}
	writer.sent = nil
	closeIt()
	if writer.sent != nil || len(answers) != 1 {
		t.Fatalf("from the old version %+v was sent; answers %v", writer.sent, answers)
	}
	versions <- "2"
	seen("2")
	q.loop.Take(key)
	if writer.sent == nil || writer.sent.ResourceVersion != "2" || writer.sent.Status.State != scheduling.QueueClosed || len(answers) != 1 {
		t.Fatalf("from the present version %+v was sent; answers %v", writer.sent, answers)
	}
	writer.done(writer.sent, nil)
	if len(answers) != 2 || answers[1] != nil {
		t.Fatalf("the answers are %v", answers)
	}
}

// TestTheStatusOfAQueueIsRepaired changes a queue in ways that the watch shows only together with
// this controller's own status, or later. The status must then be written again.
func TestTheStatusOfAQueueIsRepaired(t *testing.T) {
	queue := func(uid types.UID, version string) *scheduling.Queue {
		return &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: "q", UID: uid, ResourceVersion: version}}
	}
	for name, c := range map[string]struct {
		shown *scheduling.Queue // after the write
	}{
		"another client has overwritten the status": {queue("u", "3")},
		"the queue is another one of this name":     {queue("other", "3")},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := informer.NewSet(&rest.Config{Host: "http://none"})
			if err != nil {
				t.Fatal(err)
			}
			writer := &statusWriter{}
			q, err := NewQueues(QueuesConfig{Informers: set, Use: noUse{}, Writer: writer})
			if err != nil {
				t.Fatal(err)
			}
			turn := func(shown *scheduling.Queue) {
				t.Helper()
				writer.sent = nil
				if err := set.Queues.Store().Add(shown); err != nil {
					t.Fatal(err)
				}
				q.loop.Take(types.NamespacedName{Name: "q"})
			}
			turn(queue("u", "1"))
			if writer.sent == nil || writer.sent.Status.State != scheduling.QueueOpen {
				t.Fatalf("the first status is %+v", writer.sent)
			}
			written := *writer.sent
			written.ResourceVersion = "2"
			turn(queue("u", "1"))
			if writer.sent != nil {
				t.Fatalf("while a write is in flight, %+v is sent", writer.sent)
			}
			writer.done(&written, nil)
			turn(queue("u", "1"))
			if writer.sent != nil {
				t.Fatalf("before the watch shows the status, %+v is sent", writer.sent)
			}
			turn(c.shown)
			if writer.sent == nil || writer.sent.Status.State != scheduling.QueueOpen || writer.sent.ResourceVersion != "3" {
				t.Errorf("sent: %+v", writer.sent)
			}
		})
	}
}
