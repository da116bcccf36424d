package applications

import (
	"context"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
)

// driftMax bounds the number of applications whose objects drift changes.
const driftMax = 100

// driftPhase is the name of the phase.
const driftPhase = "drift"

// drift changes one object of some applications and deletes another, as users do by hand. It
// measures the time from the answer to such a write to the answer to the manager's repair.
func (t *trial) drift(ctx context.Context) error {
	n := min(t.cfg.Applications, driftMax)
	t.Say("drift of %d applications", n)
	client, err := kubernetes.NewForConfig(t.REST)
	if err != nil {
		return err
	}
	var repaired []float64
	p, err := t.phase(ctx, driftPhase, func() error {
		group, sending := errgroup.WithContext(ctx)
		group.SetLimit(8)
		for i := range n {
			group.Go(func() error {
				_, err := client.CoreV1().ConfigMaps(namespace).Patch(sending, name(i)+"-conf", types.MergePatchType, []byte(`{"data":{"key":"by hand"}}`), metav1.PatchOptions{})
				if err != nil {
					return err
				}
				return client.CoreV1().Secrets(namespace).Delete(sending, name(i)+"-cred", metav1.DeleteOptions{})
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		_, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) {
			repaired = repairs(t.Log.Events)
			return len(repaired) >= 2*n, nil
		})
		return err
	})
	if err != nil {
		return err
	}
	p.Done = len(repaired) / 2
	p.TotalMs = analyse.PercentilesOf(repaired, 2)
	t.run.Phases = append(t.run.Phases, *p)
	t.run.Checked += 2 * n
	if len(repaired) < 2*n {
		t.run.Bad("drift: %d of %d objects were repaired", len(repaired), 2*n)
	}
	return nil
}

// repairs returns how long the manager took to repair each object that the client changed, in ms.
// If the manager's repair is answered before the client's change is, the time is zero.
func repairs(events []analyse.Event) []float64 {
	type object struct{ resource, name string }
	broken := map[object]*analyse.Event{}
	concerned := func(e *analyse.Event, actor string) bool {
		return e.Actor == actor && e.OK() && e.Namespace == namespace && (e.Resource == "configmaps" || e.Resource == "secrets")
	}
	for i := range events {
		if e := &events[i]; concerned(e, observe.Client) {
			broken[object{e.Resource, e.Name}] = e
		}
	}
	var out []float64
	for i := range events {
		e := &events[i]
		if !concerned(e, observe.Manager) {
			continue
		}
		o := object{e.Resource, e.Name}
		if by := broken[o]; by != nil && e.Time.After(by.Received) {
			out = append(out, max(0, float64(e.Time.Sub(by.Time).Microseconds())/1e3))
			delete(broken, o)
		}
	}
	return out
}
