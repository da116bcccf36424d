package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// shot is a wrong value in a leaf, and the object that has it.
type shot struct {
	leaf
	value  string
	object *unstructured.Unstructured
}

func (s shot) String() string { return s.leaf.String() + ": " + s.value }

// batchSize is the number of objects that exist at the same time.
const batchSize = 3000

// sampled is the number of objects tried unless LOCKSTEP_HOSTILE is full.
const sampled = batchSize

// TestWrongValues puts wrong values into the leaves of all CRDs, and stores the objects that the
// API server accepts. After each batch a canary of each system runs to its end, and again after a
// restart of the manager with the batch in place.
func TestWrongValues(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a cluster")
	}
	seed := rand.Uint64()
	if s := os.Getenv("LOCKSTEP_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOCKSTEP_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	shots := w.shots(random)
	kinds, places := map[string]bool{}, map[string]bool{}
	accepted := 0
	for len(shots) > 0 {
		batch := shots[:min(batchSize, len(shots))]
		shots = shots[len(batch):]
		taken, err := w.survives(batch)
		for _, s := range batch {
			kinds[s.kind.String()], places[s.leaf.String()] = true, true
		}
		accepted += len(taken)
		if err != nil {
			t.Errorf("%v\nwith %v", err, w.guilty(taken))
		}
		t.Logf("%d leaves tried, %d objects taken; %d to go", len(places), accepted, len(shots))
	}
	t.Logf("%d leaves of %d kinds were tried, and %d objects taken by the API server", len(places), len(kinds), accepted)
}

// shots returns all values to try, in random order. Each leaf occurs once before any leaf occurs
// again.
func (w *world) shots(random *rand.Rand) []shot {
	w.Helper()
	var all []shot
	rounds := make([][]shot, len(wrongValues))
	ofSchemas, ofTypes := 0, 0
	base := bases(w)
	for _, crd := range crdSchemas(w.T) {
		inSchema, inType := leaves(w.T, &crd)
		ofSchemas += len(inSchema)
		ofTypes += len(inType)
		each := func(places []leaf, values int) {
			for _, l := range places {
				for round, i := range random.Perm(len(wrongValues))[:values] {
					rounds[round] = append(rounds[round], w.shot(l, wrongValues[i], &crd, base))
				}
			}
		}
		each(inSchema, len(wrongValues))
		each(inType, 2) // two values each, because these leaves are many
	}
	for _, round := range rounds { // each leaf has its first value before any has its second
		random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		all = append(all, round...)
	}
	w.Logf("%d leaves in schemas, and %d more in Go types", ofSchemas, ofTypes)
	if os.Getenv("LOCKSTEP_HOSTILE") != "full" {
		all = all[:min(sampled, len(all))]
	}
	for i := range all {
		all[i].object.SetName(fmt.Sprintf("x%d", i))
	}
	if from, err := strconv.Atoi(os.Getenv("LOCKSTEP_HOSTILE_FROM")); err == nil {
		all = all[min(max(from, 0), len(all)):] // resumes a run with the same seed
	}
	return all
}

func (w *world) shot(l leaf, value string, crd *apiextensionsv1.CustomResourceDefinition, base map[string]map[string]any) shot {
	w.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(value))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		w.Fatalf("%s: %v", value, err)
	}
	from, found := base[l.kind.Kind]
	s := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	if !found || l.kind.Group == "core.oam.dev" && l.kind.Kind == "Workflow" {
		from, _ = sample(s).(map[string]any)
	}
	content, _ := put(from, s, l.path, v).(map[string]any)
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for k, v := range content {
		o.Object[k] = v
	}
	delete(o.Object, "metadata")
	o.SetGroupVersionKind(l.kind)
	return shot{l, value, o}
}

// survives stores objects. It returns those that the API server accepted, and an error if canaries
// do not run beside them.
func (w *world) survives(batch []shot) (taken []shot, err error) {
	w.Helper()
	p := startProcess(w.T, w.c)
	taken = w.store(batch)
	defer w.clear(taken)
	err = w.canariesOf(p)
	if err != nil {
		return taken, err
	}
	p = startProcess(w.T, w.c)
	if err = w.canariesOf(p); err != nil {
		return taken, fmt.Errorf("after a restart: %w", err)
	}
	return taken, nil
}

// canariesOf runs canaries under a manager, and then ends the manager.
func (w *world) canariesOf(p *process) error {
	err := w.canariesLive(90 * time.Second)
	if ended := p.stop(); ended != nil {
		return ended
	}
	return err
}

// guilty finds the objects that make canaries fail, by bisection.
func (w *world) guilty(suspects []shot) []shot {
	w.Helper()
	for len(suspects) > 1 {
		half := suspects[:len(suspects)/2]
		if _, err := w.survives(half); err != nil {
			suspects = half
			continue
		}
		rest := suspects[len(half):]
		if _, err := w.survives(rest); err != nil {
			suspects = rest
			continue
		}
		return suspects // they fail only together
	}
	return suspects
}

// store creates objects as a user would, several at a time.
func (w *world) store(batch []shot) (taken []shot) {
	w.Helper()
	var mu sync.Mutex
	var clients sync.WaitGroup
	next := make(chan shot)
	for range 8 {
		clients.Go(func() {
			for s := range next {
				_, err := w.in(s.kind, w.ns).Create(w.Context(), s.object.DeepCopy(), metav1.CreateOptions{})
				if err == nil {
					mu.Lock()
					taken = append(taken, s)
					mu.Unlock()
				}
			}
		})
	}
	for _, s := range batch {
		next <- s
	}
	close(next)
	clients.Wait()
	return taken
}

// clear deletes the stored objects, and waits until they are gone. No manager runs meanwhile, so
// clear removes finalizers.
func (w *world) clear(taken []shot) {
	w.Helper()
	ctx := context.Background()
	kinds := map[schema.GroupVersionKind]bool{}
	for _, s := range taken {
		kinds[s.kind] = true
	}
	for kind := range kinds {
		err := localtest.Await(ctx, 2*time.Minute, func() error {
			list, err := w.in(kind, w.ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			left := 0
			for _, o := range list.Items {
				if !strings.HasPrefix(o.GetName(), "x") {
					continue
				}
				left++
				if len(o.GetFinalizers()) > 0 {
					patch := []byte(`{"metadata":{"finalizers":null}}`)
					_, _ = w.in(kind, w.ns).Patch(ctx, o.GetName(), "application/merge-patch+json", patch, metav1.PatchOptions{})
				}
				_ = w.in(kind, w.ns).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
			}
			if left > 0 {
				return fmt.Errorf("%d objects of kind %s are left", left, kind.Kind)
			}
			return nil
		})
		if err != nil {
			w.Error(err)
		}
	}
	now := int64(0)
	_ = w.core.CoreV1().Pods(w.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
}
