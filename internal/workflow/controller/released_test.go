package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func TestAWorkflowIsTakenUpAgainAsItWasLeft(t *testing.T) {
	at := func(version string) *wf.Workflow {
		return &wf.Workflow{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: version}}
	}
	var f releasedWorkflows
	f.left(&record{uid: "u", version: "5"}) // nothing was written
	if !f.settled(at("4")) {
		t.Error("one that was only looked at is not taken up")
	}
	f.left(&record{uid: "u", version: "5", writes: 1})
	if f.settled(at("4")) {
		t.Error("taken up as it was before the last write")
	}
	if f.answered("u", 7, "6") {
		t.Error("nothing was at the writer")
	}
	if !f.settled(at("5")) || !f.settled(at("4")) {
		t.Error("not taken up when the watch had caught up, or remembered for longer")
	}
	f.left(&record{uid: "u", version: "5", writes: 2, writing: 7})
	if f.settled(at("5")) || f.answered("u", 6, "9") || f.settled(at("9")) {
		t.Error("taken up while a status was at the writer")
	}
	if !f.answered("u", 7, "8") || f.settled(at("7")) || !f.settled(at("8")) {
		t.Error("the version of the late answer does not count")
	}
	f.left(&record{uid: "u", version: "5", writes: 2, writing: 7})
	if !f.answered("u", 7, "") || !f.settled(at("5")) {
		t.Error("not taken up after a write that failed")
	}
	f.ended(&record{uid: "u", version: "5"}, at("5"))
	if len(f.lives) != 0 {
		t.Error("one whose end the watch shows is remembered")
	}
	f.ended(&record{uid: "u", version: "5"}, at("4"))
	if f.settled(at("4")) || !f.settled(at("5")) {
		t.Error("taken up before the watch shows that it is over, or not after that")
	}
	f.left(&record{uid: "u", version: "5", writes: 2, writing: 7})
	if f.gone("u"); len(f.lives) != 0 {
		t.Error("one that does not exist any more is remembered")
	}
}
