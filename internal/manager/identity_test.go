package manager

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWhoseLeaseIsThatOfAProcessThatHasEnded(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	self, ok := proc.self()
	if !ok {
		t.Skip("the kernel does not say which process this is")
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	there := self
	there.pid = fmt.Sprint(child.Process.Pid)
	if there.started, err = proc.startedAt(there.pid); err != nil {
		t.Fatal(err)
	}
	with := func(p process, change func(*process)) process { change(&p); return p }
	holder := func(host string, p process) string { return host + "_" + p.String() + "_6f1c" }
	check := func(name, holder string, want bool) {
		t.Helper()
		if got := hasEnded(holder); got != want {
			t.Errorf("%s: %v for %s", name, got, holder)
		}
	}
	check("this process", newIdentity(), false)
	check("another one of this machine", holder(host, there), false)
	// Two containers with the same host name each have a process 1.
	check("one with this one's number in another container", holder(host, with(self, func(p *process) { p.namespace = "4026531000" })), false)
	check("one with a number that nobody has here, in another container",
		holder(host, with(self, func(p *process) { p.namespace, p.pid = "4026531000", "4194399" })), false)
	check("one with this one's number on another machine", holder(host, with(self, func(p *process) { p.boot = strings.Repeat("0", 32) })), false)
	check("one of a host with another name", holder("elsewhere", with(self, func(p *process) { p.pid = "4194399" })), false)
	check("one whose number this one has now", holder(host, with(self, func(p *process) { p.started += "0" })), true)
	for _, unknown := range []string{"", "x", host + "_1_6f1c", fmt.Sprintf("%s_%d_6f1c", host, os.Getpid()), host + "_4194399_6f1c", host + "_0-1-1-0_6f1c"} {
		check("one that does not say enough", unknown, false)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	check("one that has ended", holder(host, there), true)
}
