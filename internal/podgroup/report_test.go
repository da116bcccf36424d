package podgroup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler"
)

// lateWriter is a writer whose answer to a status write the test gives.
type lateWriter struct {
	apiwriter.Writer
	done func(apiwriter.Object, error)
}

func (w *lateWriter) Status(_ apiwriter.Meta, _ apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	w.done = done
}

func (*lateWriter) Event(apiwriter.Object, string, string, string) {}

type noScheduler struct{}

func (noScheduler) Submit(*scheduler.Gang)                      {}
func (noScheduler) Withdraw(string)                             {}
func (noScheduler) Promise(string, string, corev1.ResourceList) {}

// TestNothingIsKeptOfADeletedPod deletes a pod while the status that says why it waits is being
// written.
func TestNothingIsKeptOfADeletedPod(t *testing.T) {
	set, err := informer.NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	writer := &lateWriter{}
	c, err := New(Config{Informers: set, Cluster: cluster.New(cluster.Config{}), Scheduler: noScheduler{}, Writer: writer})
	if err != nil {
		t.Fatal(err)
	}
	p := member("p", "", "", corev1.PodPending)
	c.mu.Lock()
	c.reportPod(keyOf(p), p, &waitReason{message: "no room"}, metav1.Now())
	c.mu.Unlock()
	c.forgetPod(p)
	writer.done(p, nil)
	if len(c.reports) != 0 {
		t.Errorf("kept: %v", c.reports)
	}
}
