package podset_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/podset/podsettest"
	"lockstep.dev/lockstep/internal/scheduler"
)

var (
	owner   = types.NamespacedName{Namespace: "ns", Name: "owner"}
	started = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// maker makes pods named p0, p1 and so on.
type maker struct{}

func (maker) PodName(i int) string { return fmt.Sprint("p", i) }

func (m maker) Pod(i int, node string, _ map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: m.PodName(i)}, Spec: corev1.PodSpec{NodeName: node}}
}

// gang is an owner of one group that needs least of its pods at once.
type gang struct {
	*podsettest.World
	set   podset.Set
	group podset.Group
	clock *clocktesting.FakePassiveClock
	least int
	inbox []func(*podset.Set) podset.Event
	waits bool
	why   podset.Refusal
	ran   bool // the gang has been complete
	ahead bool // pods are created without nodes when the scheduler asks for them
}

func newGang(w *podsettest.World, size, least int) *gang {
	g := &gang{World: w, least: least, clock: clocktesting.NewFakePassiveClock(started)}
	w.Show = func(p *corev1.Pod, gone bool) {
		g.inbox = append(g.inbox, func(*podset.Set) podset.Event { g.show(p, gone); return podset.Event{} })
	}
	g.set.Reset(&podset.Config{
		Scheduler: w, Model: w, Writer: w, Pods: w, Nodes: nodes{}, Rejected: rejected,
		Post: func(_ types.NamespacedName, _ types.UID, do func(*podset.Set) podset.Event) bool {
			g.inbox = append(g.inbox, do)
			return true
		},
		Window: 2, Clock: g.clock, Log: slog.New(slog.DiscardHandler),
	}, owner, "uid", "owner")
	g.group.Maker = maker{}
	g.group.Plan = plan.Of(g.group.Pod(0, "", nil), nil, "")
	g.group.Resize(int32(size))
	g.set.Add(&g.group)
	return g
}

func rejected(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOfcpu"
}

// nodes has every node.
type nodes struct{}

func (nodes) Get(string, string) (*corev1.Node, bool) { return nil, true }

func (g *gang) ref(i int) podset.Ref { return podset.Ref{Group: &g.group, Index: int32(i)} }

func (g *gang) show(p *corev1.Pod, gone bool) {
	var i int
	if _, err := fmt.Sscanf(p.Name, "p%d", &i); err != nil {
		g.Fail("pod %s: %v", p.Name, err)
	}
	if gone {
		g.set.ObserveDeleted(g.ref(i), p.UID)
	} else {
		g.set.Observe(g.ref(i), p)
	}
}

// turn runs a turn of the owner.
func (g *gang) turn() {
	inbox := g.inbox
	g.inbox = nil
	for _, do := range inbox {
		switch e := do(&g.set); e.Kind {
		case podset.Waits:
			g.waits = true
		case podset.Placed:
			g.waits = false
		case podset.Refused:
			g.why.Note(g.clock.Now(), "", e.Err.Error())
			g.set.Withdraw()
		case podset.BindFailed:
			if p, found := g.Get("", e.PodName(int(e.Index))); found {
				g.show(p, false)
			}
		}
	}
	g.set.DeleteAgain()
	held := int(g.set.Sum().Held())
	g.ran = g.ran || held == len(g.group.Slots()) && !g.set.Busy()
	if (g.waits || g.why.Noted()) && !g.set.Busy() && held > 0 && held < g.least && !g.ran {
		g.set.RollBack()
	}
	g.ask()
	g.set.Pump()
	g.check()
}

func (g *gang) ask() {
	if g.why.Left(g.clock.Now()) > 0 {
		return
	}
	var refs []podset.Ref
	q := g.set.Requests()["gang"]
	fresh := q != nil && q.Stale
	if g.ahead && g.group.Counts[podset.Creating] > 0 {
		return
	}
	for i, slot := range g.group.Slots() {
		switch state := slot.State(); {
		case state == podset.Absent && g.group.BindLater:
			g.set.Create(g.ref(i))
		case state == podset.Queued:
			refs = append(refs, g.ref(i))
		case state == podset.Unbound:
			if p, found := g.Get("", g.group.PodName(i)); found && p.UID == slot.UID() {
				refs, fresh = append(refs, g.ref(i)), true
			}
		case state == podset.Absent:
			refs, fresh = append(refs, g.ref(i)), true
		}
	}
	need := max(0, g.least-int(g.set.Sum().Held()))
	if g.ran {
		need = min(1, need)
	}
	if len(refs) == 0 {
		g.set.WithdrawGangs()
	} else if fresh && len(refs) >= need {
		g.set.Submit(&scheduler.Gang{Key: "gang", Ahead: g.ahead, MinMember: need, Demands: []scheduler.Demand{{Template: g.group.Plan}}}, [][]podset.Ref{refs})
	}
}

// check compares the counts with the slots.
func (g *gang) check() {
	var counts podset.Counts
	waiting := int32(0)
	for _, slot := range g.group.Slots() {
		counts[slot.State()]++
		if slot.State().HasPod() && slot.UID() == "" {
			g.Fail("a slot in state %d has no pod", slot.State())
		}
		if slot.State() == podset.Queued && slot.UID() != "" {
			waiting++
		}
	}
	if waiting != g.group.Waiting {
		g.Fail("%d pods wait for their nodes, %d are counted", waiting, g.group.Waiting)
	}
	if counts != g.group.Counts || counts != *g.set.Sum() {
		g.Fail("counts are %v, want %v", g.group.Counts, counts)
	}
}

// settle makes steps, without further faults, until nothing is left to do.
func (g *gang) settle() {
	g.Calm = true
	for range 10_000 {
		g.turn()
		if g.Step() {
			continue
		}
		g.finishDeletions()
		g.clock.SetTime(g.clock.Now().Add(10 * time.Minute))
		for _, x := range g.set.Unseen() {
			if x.Pod == nil {
				g.set.ObserveDeleted(x.Ref, x.Slot(x.Index).UID())
			} else {
				g.show(x.Pod, false)
			}
		}
		if g.turn(); g.Idle() && len(g.inbox) == 0 {
			return
		}
	}
	g.Fail("no end after many steps; slots %v", g.group.Counts)
}

// finishDeletions removes the pods that terminate.
func (g *gang) finishDeletions() {
	for name, p := range g.Server {
		if p.DeletionTimestamp != nil {
			g.Remove(name)
		}
	}
}

func (g *gang) fault(t *rapid.T) {
	name := g.group.PodName(rapid.IntRange(0, len(g.group.Slots())-1).Draw(t, "pod"))
	switch rapid.IntRange(0, 6).Draw(t, "fault") {
	case 0:
		g.Relist()
	case 1:
		g.Remove(name)
	case 2:
		g.Change(name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: started} })
	case 3:
		g.Change(name, func(p *corev1.Pod) {
			if p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending {
				p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfcpu"
			}
		})
	case 4:
		g.Change(name, func(p *corev1.Pod) {
			if p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending {
				p.Status.Phase = corev1.PodRunning
			}
		})
	case 5:
		g.Refuse = func(*corev1.Pod) error {
			return apierrors.NewForbidden(podsettest.Pods, "", errors.New("exceeded quota"))
		}
	case 6:
		g.Refuse = nil
	}
}

// TestEverySlotGetsItsPod makes events, faults and refusals in random order, and then stops the
// faults. It checks that in the end every slot has one pod, with a node, and that nothing is
// assumed for pods that do not exist.
func TestEverySlotGetsItsPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		size := rapid.IntRange(1, 4).Draw(t, "size")
		g := newGang(podsettest.New(choose, t.Fatalf), size, rapid.IntRange(1, size).Draw(t, "least"))
		g.ahead = rapid.Bool().Draw(t, "pods ahead")
		if g.ahead {
			g.Room = 0 // until the end, so that the gang waits
		}
		policy := func(*corev1.Pod) error { return nil }
		if rapid.Bool().Draw(t, "a policy forbids pods to name their node") {
			policy = func(p *corev1.Pod) error {
				if p.Spec.NodeName == "" {
					return nil
				}
				return apierrors.NewForbidden(podsettest.Pods, p.Name, errors.New("spec.nodeName is forbidden"))
			}
		}
		g.Refuse = policy
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				g.fault(t)
			case 1, 2, 3:
				g.turn()
			case 4:
				g.clock.SetTime(g.clock.Now().Add(time.Second))
			default:
				g.Step()
			}
		}
		g.Refuse, g.Room = policy, 1<<20
		g.settle()
		for i, slot := range g.group.Slots() {
			p := g.Server[g.group.PodName(i)]
			if p == nil || p.Spec.NodeName == "" || slot.UID() != p.UID || !slot.State().Holds() || slot.State() == podset.Created {
				t.Errorf("slot %d is in state %d; its pod is %v", i, slot.State(), p)
			}
		}
		if len(g.Assumed()) > 0 || g.set.Expects() || g.set.Busy() || g.set.Deletions() > 0 {
			t.Errorf("room is assumed for %v; pods are expected: %v, at the writer: %v, being deleted: %d",
				g.Assumed(), g.set.Expects(), g.set.Busy(), g.set.Deletions())
		}
	})
}

// TestAGangBelowItsMinimumHoldsNothing checks that a gang is rolled back if the server accepts
// fewer pods than the gang needs.
func TestAGangBelowItsMinimumHoldsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		size := rapid.IntRange(2, 5).Draw(t, "size")
		least := rapid.IntRange(2, size).Draw(t, "least")
		quota := rapid.IntRange(0, least-1).Draw(t, "quota")
		g := newGang(podsettest.New(choose, t.Fatalf), size, least)
		g.Calm = true
		g.Refuse = func(*corev1.Pod) error {
			if len(g.Server) < quota {
				return nil
			}
			return apierrors.NewForbidden(podsettest.Pods, "", errors.New("exceeded quota"))
		}
		for range 400 {
			g.turn()
			if !g.Step() {
				g.finishDeletions()
				if g.turn(); g.Idle() && len(g.inbox) == 0 && !g.set.Busy() {
					break
				}
				g.clock.SetTime(g.clock.Now().Add(100 * time.Millisecond))
			}
		}
		if len(g.Server) > 0 || len(g.Assumed()) > 0 {
			t.Errorf("%d of at least %d pods exist, with room for %v", len(g.Server), least, g.Assumed())
		}
	})
}

// TestAnswersOfAnotherTime checks that an answer that arrives after the watch showed the pod, or
// after the group was removed, changes no slot, and that the owner learns of a pod that it must
// delete.
func TestAnswersOfAnotherTime(t *testing.T) {
	first := func(string, int) int { return 0 }
	for name, tc := range map[string]struct {
		between func(g *gang)
		want    []podset.EventKind
		pods    int
	}{
		"nothing":                        {func(*gang) {}, []podset.EventKind{podset.Written}, 1},
		"the group is removed":           {func(g *gang) { g.set.Remove(&g.group) }, []podset.EventKind{podset.Unwanted}, 1},
		"removed, and the pod has ended": {func(g *gang) { ends(g); g.set.Remove(&g.group) }, []podset.EventKind{podset.Nothing}, 1},
		"the watch is faster":            {func(g *gang) { g.Watch(); g.handle() }, []podset.EventKind{podset.Nothing}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGang(podsettest.New(first, t.Fatalf), 1, 1)
			g.group.BindLater = true
			g.ask()
			g.set.Pump()
			g.Step() // the server has the pod
			tc.between(g)
			for g.Writes() > 0 {
				g.Step()
			}
			if got := g.handle(); !slices.Equal(got, tc.want) || len(g.Server) != tc.pods || g.set.Busy() {
				t.Errorf("events %v, want %v; %d pods", got, tc.want, len(g.Server))
			}
		})
	}
}

// TestAWriteThatWaitsIsOvertaken checks that the unsent binding of a pod survives a late answer to
// the pod's create, and is dropped when the pod is deleted.
func TestAWriteThatWaitsIsOvertaken(t *testing.T) {
	schedule := 0
	g := newGang(podsettest.New(func(what string, _ int) int {
		if what == "step" {
			return schedule
		}
		return 0
	}, t.Fatalf), 2, 1)
	g.group.BindLater = true
	g.ask()
	g.set.Pump() // the window is full
	g.Step()
	g.Watch() // the first pod exists
	g.handle()
	g.ask()
	schedule = 1
	g.Step()
	g.handle()
	g.set.Pump()
	schedule = 0
	g.Step() // the answer to the create
	if kinds := g.handle(); !slices.Equal(kinds, []podset.EventKind{podset.Nothing}) || g.group.Slot(0).State() != podset.Placing {
		t.Errorf("events %v, state %d", kinds, g.group.Slot(0).State())
	}
	g.Remove("p0")
	g.Watch()
	g.handle()
	g.set.Pump()
	if state := g.group.Slot(0).State(); state != podset.Absent || g.Writes() != 1 || len(g.Assumed()) > 0 {
		t.Errorf("state %d, %d writes, room for %v", state, g.Writes(), g.Assumed())
	}
}

// TestALateAnswerKeepsTheRoomOfTheNextPod checks that the answer to a create keeps the reservation
// of the next pod of the same name, if the watch showed the first pod and its deletion before.
func TestALateAnswerKeepsTheRoomOfTheNextPod(t *testing.T) {
	schedule := 0
	g := newGang(podsettest.New(func(what string, _ int) int {
		if what == "step" {
			return schedule
		}
		return 0
	}, t.Fatalf), 1, 1)
	place := func() {
		g.ask()
		g.Step()
		g.handle()
		g.set.Pump()
	}
	place()
	g.Step() // the server has the pod
	g.Watch()
	g.handle()
	g.Remove("p0")
	g.Watch()
	g.handle()
	schedule = 1
	place()
	schedule = 0
	if g.Writes() != 2 {
		t.Fatalf("%d creates are not answered, want 2", g.Writes())
	}
	g.Step() // the answer to the first create
	g.handle()
	g.Relist()
	if room := g.Assumed(); !slices.Equal(room, []string{"p0"}) {
		t.Errorf("room is kept for %v, want p0", room)
	}
}

// TestAPodThatWasDeletedUnseen checks that Unseen reports a pod that was created and deleted while
// the watch was broken.
func TestAPodThatWasDeletedUnseen(t *testing.T) {
	g := newGang(podsettest.New(func(string, int) int { return 0 }, t.Fatalf), 1, 1)
	g.group.BindLater = true
	g.ask()
	g.set.Pump()
	g.Step()
	g.Remove("p0")
	g.Relist()
	g.Step()
	g.handle()
	if list := g.set.Unseen(); len(list) != 1 || list[0].Pod != nil || g.set.Expects() {
		t.Errorf("unseen: %v", list)
	}
}

func ends(g *gang) {
	g.Change("p0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	g.Watch()
	g.Watch()
	g.inbox = nil
}

// handle runs the posted functions and returns the kinds of their events.
func (g *gang) handle() (kinds []podset.EventKind) {
	for _, do := range g.inbox {
		kinds = append(kinds, do(&g.set).Kind)
	}
	g.inbox = nil
	return kinds
}

// TestDeletionsByOtherMeans checks when pods are deleted one by one that the watch does not show as being
// deleted, although that was requested by other means.
func TestDeletionsByOtherMeans(t *testing.T) {
	for _, x := range []struct {
		done      bool
		not, then time.Duration // after which the pod is not yet deleted, and after which it is
	}{{false, 0, 2 * time.Second}, {true, 9 * time.Second, 11 * time.Second}} {
		w := podsettest.New(func(string, int) int { return 0 }, t.Fatalf)
		g := newGang(w, 1, 1)
		g.settle()
		p, found := w.Get("", "p0")
		if !found {
			t.Fatal("there is no pod")
		}
		list := []podset.Deletion{{Name: p.Name, UID: p.UID}}
		g.set.BeginDeletions(list)
		if g.set.EndDeletions(list, x.done); !g.set.Deleting(p.UID) {
			t.Errorf("done %v: the pod does not count as being deleted", x.done)
		}
		began, before := g.clock.Now(), w.Writes()
		g.clock.SetTime(began.Add(x.not))
		if _, left := g.set.DeleteAgain(); w.Writes() != before || left <= 0 {
			t.Errorf("done %v: after %v %d deletions, %v left", x.done, x.not, w.Writes()-before, left)
		}
		g.clock.SetTime(began.Add(x.then))
		if g.set.DeleteAgain(); w.Writes()-before != 1 {
			t.Errorf("done %v: after %v %d deletions, want 1", x.done, x.then, w.Writes()-before)
		}
	}
}
