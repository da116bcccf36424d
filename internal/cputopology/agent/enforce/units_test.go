package enforce

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// calls records what systemd is told.
type calls struct {
	made []string
	err  error
}

func (c *calls) Allow(unit string, cpus cpuset.Set, mems *cpuset.Set, quota *int64) error {
	call := unit + " " + cpus.String()
	if mems != nil {
		call += " mems " + mems.String()
	}
	if quota != nil {
		call += fmt.Sprint(" quota ", *quota)
	}
	c.made = append(c.made, call)
	return c.err
}

// take returns the calls since the last take.
func (c *calls) take() []string {
	made := c.made
	c.made = nil
	return made
}

// TestSystemdIsToldWhatChanges checks the calls to systemd on a node with its cgroup driver.
// Package systemd tests their effect on a running systemd.
func TestSystemdIsToldWhatChanges(t *testing.T) {
	n := newFakeNode(t, cgroup.V2, 4)
	w := newWorld(t, n, cgroup.V2, 4)
	told := &calls{}
	w.e.cfg.Units = told
	n.mkdir("kubepods.slice")
	pod := func(uid string) string { return "kubepods.slice/kubepods-pod" + uid + ".slice" }
	for _, uid := range []string{"a", "b"} {
		w.start(pod(uid) + "/cri-containerd-" + uid + "c.scope")
	}
	is := func(what string, want ...string) {
		t.Helper()
		got := told.take()
		if !slices.Equal(got, want) {
			t.Errorf("%s: systemd is told %q, want %q", what, got, want)
		}
	}
	p := pods{"a": {"c": "0"}, "b": {"c": ""}}
	w.pass(p)
	is("at first", "cri-containerd-ac.scope 0", "kubepods-poda.slice 0", "cri-containerd-bc.scope 1-3", "kubepods-podb.slice 1-3")
	w.pass(p)
	is("without a change")

	told.err = errors.New("no answer")
	p["a"]["c"] = "1"
	out := w.pass(p)
	if len(told.take()) != 1 || len(out.Problems) != 1 || !strings.Contains(out.Problems[0].Message, "no answer") || out.Pinned != 1 {
		t.Errorf("systemd does not answer: %+v", out)
	}
	if out = w.pass(p); len(told.take()) != 0 || len(out.Problems) != 1 {
		t.Errorf("it is asked again at once: %+v", out)
	}
	told.err = nil
	w.now = w.now.Add(tellRetry + time.Second)
	if out = w.pass(p); len(out.Problems) != 0 {
		t.Errorf("%+v", out)
	}
	is("when it answers again", "cri-containerd-ac.scope 1", "kubepods-poda.slice 1", "cri-containerd-bc.scope 0,2-3", "kubepods-podb.slice 0,2-3")

	_, err := w.e.Release(Input{})
	check(t, err)
	is("released", "cri-containerd-ac.scope ", "kubepods-poda.slice ", "cri-containerd-bc.scope ", "kubepods-podb.slice ")

	for i := range 2 * tellMax {
		w.start(fmt.Sprintf("%s/cri-containerd-x%d.scope", pod("x"), i))
	}
	w.pass(p)
	if got := told.take(); len(got) != 2+tellMax || got[0] != "cri-containerd-ac.scope 1" {
		t.Errorf("%d calls in one pass: %q", len(got), got)
	}
}
