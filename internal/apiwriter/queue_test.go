package apiwriter

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQueueTakesTurnsAmongOwners(t *testing.T) {
	var q queue
	for i := range 1000 {
		q.push(&write{owner: "big", seq: uint64(i)})
	}
	q.push(&write{owner: "small"})
	for range ownerBatch {
		q.pop(ClassEvent)
	}
	if w := q.pop(ClassEvent); w.owner != "small" {
		t.Errorf("the second turn went to %s", w.owner)
	}
}

func TestQueueCompletesOneGangAfterTheOther(t *testing.T) {
	var q queue
	for pod := range 20 {
		for job := range 3 {
			q.push(&write{owner: fmt.Sprint("job", job), seq: uint64(pod)})
		}
	}
	for i := range 60 {
		if w := q.pop(ClassEvent); w.owner != fmt.Sprint("job", i/20) {
			t.Fatalf("write %d is of %s", i, w.owner)
		}
	}
}

func TestQueueServesClassesInOrderButStarvesNone(t *testing.T) {
	var q queue
	served := [numClasses]int{}
	const n = 1000
	for range n {
		for class := range Class(numClasses) {
			q.push(&write{class: class, owner: "x"})
		}
	}
	for range n {
		served[q.pop(ClassEvent).class]++
	}
	for class, min := range [numClasses]int{ClassPods: 560, ClassDelete: 160, ClassUrgent: 80, ClassStart: 40, ClassStatus: 40, ClassEvent: 15} {
		if served[class] < min {
			t.Errorf("of the first %d writes, %d are of class %s, want at least %d", n, served[class], classNames[class], min)
		}
	}
}

// TestQueueProperties checks that each write comes out once, that the writes of one owner in a
// class stay in order, and that no owner gets two turns of a class while another waits for its
// first.
func TestQueueProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		type line struct {
			class Class
			owner string
		}
		waiting := map[line][]*write{}
		in, out := uint64(0), 0
		pop := func() {
			w := q.pop(ClassEvent)
			if w == nil {
				if int(in) != out {
					t.Fatalf("empty, with %d writes inside", int(in)-out)
				}
				return
			}
			out++
			k := line{w.class, w.owner}
			if waiting[k][0] != w {
				t.Fatalf("%v: got write %d before %d", k, w.seq, waiting[k][0].seq)
			}
			waiting[k] = waiting[k][1:]
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			w := &write{
				class: Class(rapid.IntRange(0, numClasses-1).Draw(t, "class")),
				owner: fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "owner")),
			}
			k := line{w.class, w.owner}
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				in++
				w.seq = in
				q.push(w)
				waiting[k] = append(waiting[k], w)
			case 2:
				in++
				w.seq = in
				q.pushFront(w)
				waiting[k] = append([]*write{w}, waiting[k]...)
			case 3:
				pop()
			}
			q.assertConsistent()
		}
		for q.len > 0 {
			pop()
			q.assertConsistent()
		}
		pop()
	})
}

func TestWhatCanWaitGivesWayToPods(t *testing.T) {
	var y lowPriorityThrottle
	now := time.Now()
	status, pod := &write{class: ClassStatus}, &write{class: ClassPods}
	y.started(status, now)
	if y.last(now, 32) != ClassEvent {
		t.Error("without pods, statuses need not give way")
	}
	y.started(pod, now)
	if y.last(now, 32) != ClassStart {
		t.Error("while pods are written, one status in flight of 32 writes is enough")
	}
	if y.last(now, 64) != ClassEvent {
		t.Error("of 64 writes in flight two may be statuses")
	}
	y.ended(status)
	if y.last(now, 32) != ClassEvent {
		t.Error("statuses must not starve")
	}
	y.started(status, now)
	if y.last(now.Add(throttleTime), 32) != ClassEvent {
		t.Error("when no pods follow, statuses go on")
	}
}
