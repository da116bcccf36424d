package scheduler

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// surveyWorld describes gangs as the test says.
type surveyWorld struct {
	*evictionWorld
	terms map[string]GangTerms
}

func (w *surveyWorld) Describe(key string) (GangTerms, bool) {
	t, found := w.terms[key]
	return t, found
}

// TestTheKeptSurveyEqualsAFreshOne changes pods, nodes, gangs and budgets at random. What searches read of
// pods that have been kept from earlier looks is what they would read if nothing had been kept.
func TestTheKeptSurveyEqualsAFreshOne(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := &surveyWorld{newEvictionWorld(t), map[string]GangTerms{}}
		w.SetEvictors(w)
		v := w.evictions
		dims := w.cluster.Dims()
		pods := map[string]*corev1.Pod{}
		one := func(kind string, n int) string {
			return fmt.Sprintf("%s%d", kind, rapid.IntRange(0, n-1).Draw(r, kind))
		}
		pod := func() *corev1.Pod {
			if len(pods) == 0 {
				r.Skip("no pods")
			}
			return pods[rapid.SampledFrom(slices.Sorted(maps.Keys(pods))).Draw(r, "pod")].DeepCopy()
		}
		upsert := func(p *corev1.Pod) {
			pods[p.Name] = p
			w.cluster.UpsertPod(p)
		}
		serial := 0
		r.Repeat(map[string]func(*rapid.T){
			"add a node":    func(*rapid.T) { w.node(one("n", 5), "20") },
			"remove a node": func(*rapid.T) { w.cluster.DeleteNode(one("n", 5)) },
			"add a pod": func(*rapid.T) {
				p := template("1").DeepCopy()
				serial++
				p.Namespace, p.Name = rapid.SampledFrom([]string{"ns", "kube-system"}).Draw(r, "namespace"), one("g", 4)+"-"+one("p", 6)
				p.UID = types.UID(fmt.Sprint(serial))
				p.Spec.NodeName, p.Spec.PriorityClassName = one("n", 5), one("class", 2)
				p.Labels = map[string]string{"app": one("app", 2)}
				if old := pods[p.Name]; old != nil {
					w.cluster.DeletePod(old)
				}
				upsert(p)
			},
			"remove a pod": func(*rapid.T) {
				p := pod()
				delete(pods, p.Name)
				w.cluster.DeletePod(p)
			},
			"end a pod": func(*rapid.T) {
				p := pod()
				delete(pods, p.Name)
				p.Status.Phase = corev1.PodSucceeded
				w.cluster.UpsertPod(p)
			},
			"change a pod": func(*rapid.T) {
				p := pod()
				switch rapid.IntRange(0, 3).Draw(r, "what") {
				case 0:
					p.Labels = map[string]string{"app": one("app", 2)}
				case 1:
					p.Annotations = map[string]string{schedulingv1beta1.PreemptableAnnotation: fmt.Sprint(rapid.Bool().Draw(r, "preemptable"))}
				case 2:
					p.DeletionTimestamp = ptr.To(metav1.NewTime(w.clock.Now()))
				case 3:
					p.Status.StartTime = ptr.To(metav1.NewTime(w.clock.Now()))
				}
				upsert(p)
			},
			"assume a pod": func(*rapid.T) {
				name := types.NamespacedName{Namespace: "ns", Name: "assumed-" + one("p", 3)}
				class, err := place.NewClass(dims, template("2"))
				if err != nil {
					r.Fatal(err)
				}
				w.cluster.Assume(name, one("n", 5), "default", one("g", 4), class, nil)
			},
			"forget a pod": func(*rapid.T) {
				w.cluster.Forget(types.NamespacedName{Namespace: "ns", Name: "assumed-" + one("p", 3)}, 0)
			},
			"evict a pod": func(*rapid.T) {
				v.roster.follow(v)
				p := pod()
				for o := range v.roster.all() {
					if o.Object != nil && o.Object.UID == p.UID {
						v.goes(o, w.clock.Now())
					}
				}
			},
			"time passes": func(*rapid.T) {
				w.clock.Step(time.Duration(rapid.IntRange(1, 100).Draw(r, "seconds")) * time.Second)
				v.check()
			},
			"change a class": func(*rapid.T) {
				w.cluster.UpsertPriorityClass(&schedulingv1.PriorityClass{
					ObjectMeta: metav1.ObjectMeta{Name: one("class", 2)}, Value: rapid.Int32Range(0, 3).Draw(r, "value"),
				})
			},
			"describe a gang": func(*rapid.T) {
				terms := GangTerms{
					Priority: rapid.Int32Range(0, 2).Draw(r, "priority"), MinMember: rapid.IntRange(0, 3).Draw(r, "min"),
					Protected: rapid.Bool().Draw(r, "protected"), Pods: rapid.IntRange(0, 5).Draw(r, "pods"),
				}
				if rapid.Bool().Draw(r, "has a budget") {
					terms.Budget = &schedulingv1beta1.DisruptionBudget{Min: rapid.IntRange(1, 3).Draw(r, "available")}
				}
				w.terms[one("g", 4)] = terms
			},
			"forget a gang": func(*rapid.T) { delete(w.terms, one("g", 4)) },
			"change the budgets": func(*rapid.T) {
				w.budgets = nil
				for i := range rapid.IntRange(0, 3).Draw(r, "budgets") {
					b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}}
					b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": one("app", 2)}}
					b.Status.DisruptionsAllowed = rapid.Int32Range(0, 2).Draw(r, "allowed")
					w.budgets = append(w.budgets, b)
				}
			},
			"": func(r *rapid.T) {
				got := v.survey(w.clock.Now())
				kept := v.roster
				v.roster = roster{}
				want := v.survey(w.clock.Now())
				v.roster = kept
				if !reflect.DeepEqual(got.Budgets, want.Budgets) {
					r.Fatalf("budgets: %+v; want %+v", got.Budgets, want.Budgets)
				}
				if !reflect.DeepEqual(got.Gangs, want.Gangs) {
					r.Fatalf("gangs: %+v\nwant: %+v", got.Gangs, want.Gangs)
				}
			},
		})
	})
}

// TestAClaimThatIsLiftedAndRestoredChangesNothing checks that the nodes count as unchanged after a claimant
// was considered without success, unless something else has changed meanwhile.
func TestAClaimThatIsLiftedAndRestoredChangesNothing(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "4")
	w.put(w.gang("low", 4, "1"))
	w.Submit(w.important("high", 2, "1"))
	w.run()
	v := w.evictions
	before := v.version()
	for range 2 {
		v.lift("high")
		if v.version() == before {
			t.Fatal("a claim is lifted, and the version is the same")
		}
		v.restore(v.claims["high"])
		if v.version() != before || v.shown() != before {
			t.Fatalf("version %d, the view's %d; want %d", v.version(), v.shown(), before)
		}
	}
	v.lift("high")
	w.node("n2", "1")
	v.restore(v.claims["high"])
	if v.version() == before {
		t.Fatal("a node has come, and the version is the same")
	}
}

// TestARefusalEndsWithTheCooldown checks that a gang evicts others once they have run for long enough,
// although nothing but the time has changed since it was refused.
func TestARefusalEndsWithTheCooldown(t *testing.T) {
	w := &surveyWorld{newEvictionWorld(t), map[string]GangTerms{"low": {MinMember: 4, Cooldown: 10 * time.Minute}}}
	w.SetEvictors(w)
	w.node("n1", "4")
	w.put(w.gang("low", 4, "1"))
	w.Submit(w.important("high", 2, "1"))
	w.run()
	for range 2 {
		expect(t, w.left(), "")
		w.clock.Step(w.retry.Sub(w.clock.Now()))
		w.run()
	}
	w.clock.Step(10 * time.Minute)
	w.run()
	expect(t, w.left(), "low for high, low-0, low-1, low-2, low-3")
}
