package systemd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/agent/enforce"
	"lockstep.dev/lockstep/internal/cputopology/agent/systemd"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// connect returns systemd's manager.
func connect(t *testing.T) (manager dbus.BusObject, done func()) {
	t.Helper()
	conn, err := dbus.Dial("unix:path=" + systemd.DefaultSocket)
	if err == nil {
		err = conn.Auth([]dbus.Auth{dbus.AuthExternal("0")})
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1"), func() { _ = conn.Close() }
}

// start starts a process in a scope of systemd, as runtimes do, and returns its number. cpus are the
// CPUs with which the runtime was asked to create the container (by NRI), as a mask.
func start(t *testing.T, scope, slice string, cpus ...byte) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	manager, done := connect(t)
	defer done()
	type property struct {
		Name  string
		Value dbus.Variant
	}
	properties := []property{{"PIDs", dbus.MakeVariant([]uint32{uint32(cmd.Process.Pid)})}, {"Slice", dbus.MakeVariant(slice)},
		{"Delegate", dbus.MakeVariant(true)}, {"CPUQuotaPerSecUSec", dbus.MakeVariant(uint64(1_000_000))}, {"DefaultDependencies", dbus.MakeVariant(false)}}
	if len(cpus) > 0 {
		properties = append(properties, property{"AllowedCPUs", dbus.MakeVariant(cpus)})
	}
	if err := manager.Call("org.freedesktop.systemd1.Manager.StartTransientUnit", 0,
		scope, "replace", properties, []struct {
			Name       string
			Properties []property
		}{}).Err; err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// runs returns the CPUs on which a process runs.
func runs(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// eventually waits until a process is where systemd has put it, which it does after it has answered.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestAReloadUndoesNothing applies CPU sets to units of a running systemd, and lets it reload its
// configuration and change a unit. It takes place only where LOCKSTEP_SYSTEMD allows it, because it
// makes units.
func TestAReloadUndoesNothing(t *testing.T) {
	if os.Getenv("LOCKSTEP_SYSTEMD") == "" {
		t.Skip("LOCKSTEP_SYSTEMD is not set")
	}
	layout := machine(t)
	files := cgroup.Dir("/sys/fs/cgroup")
	units := systemd.New(systemd.DefaultSocket)
	defer units.Close()
	dir := func(pod string) string {
		return "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + pod + ".slice"
	}
	container := func(pod, id string, cpus ...byte) int {
		t.Helper()
		scope := "cri-containerd-" + id + ".scope"
		pid := start(t, scope, path.Base(dir(pod)), cpus...)
		eventually(t, "systemd does not make the unit", func() bool {
			procs, err := files.ReadFile(path.Join(dir(pod), scope, "cgroup.procs"))
			return err == nil && strings.TrimSpace(string(procs)) == fmt.Sprint(pid)
		})
		return pid
	}
	// The runtime has created the first two with CPUs of their own.
	pids := []int{container("a", "a1", 1), container("a", "a2", 2), container("b", "b1")}
	quotas := cgroup.Quotas{Files: files, Version: cgroup.V2}
	e := enforce.New(enforce.Config{Node: "n", Sets: cgroup.Sets{Files: files, Version: cgroup.V2},
		Quotas: quotas, Units: units, Log: slog.New(slog.DiscardHandler)})
	var in enforce.Input
	pass := func(generation int64, c, d string) {
		t.Helper()
		result, err := json.Marshal(request.Result{Version: 1, Node: "n", Containers: map[string]request.ContainerResult{
			"c": {CPUs: cpuset.MustParse(c), Share: 1}, "d": {CPUs: cpuset.MustParse(d), Share: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		in = enforce.Input{Generation: generation, Layout: layout, Names: map[string]string{"a1": "c", "a2": "d", "b1": "c"},
			Pods: []desired.Pod{{UID: "a", Namespace: "ns", Name: "a", Containers: []string{"c", "d"}, Result: string(result),
				Limits: map[string]int64{"c": 1000, "d": 1000}},
				{UID: "b", Namespace: "ns", Name: "b", Containers: []string{"c"}}}}
		if out, err := e.Pass(in, time.Now()); err != nil || len(out.Problems) > 0 {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	released := false
	are := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, pid := range pids {
			got = append(got, runs(t, pid))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the containers run on %v, want %v", what, got, want)
		}
		// Those with CPUs of their own have no quota.
		for id, limit := range map[string]int64{"a/a1": 0, "a/a2": 0, "b/b1": 1000} {
			pod, id, _ := strings.Cut(id, "/")
			if released {
				limit = 1000
			}
			if quota, err := quotas.Get(path.Join(dir(pod), "cri-containerd-"+id+".scope")); err != nil || quota != limit {
				t.Errorf("%s: the container %s has a quota of %d, %v; want %d", what, id, quota, err, limit)
			}
		}
	}
	marker, markedAt := start(t, "marker.scope", "marker.slice"), 0
	reload := func() {
		t.Helper()
		manager, done := connect(t)
		defer done()
		// The answer gets lost in the reload, so another call shows when it is over.
		if err := manager.Call("org.freedesktop.systemd1.Manager.Reload", dbus.FlagNoReplyExpected).Err; err != nil {
			t.Fatal(err)
		}
		// It then writes cgroups from a queue, in which this one is the last.
		markedAt = 1 - markedAt
		if err := units.Allow("marker.scope", cpuset.Of(markedAt), nil, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "systemd does not get to the end", func() bool { return runs(t, marker) == fmt.Sprint(markedAt) })
	}
	pass(1, "0", "1")
	are("applied", "0", "1", "2-3")
	reload()
	are("after a reload", "0", "1", "2-3")
	pass(2, "2", "3")
	are("moved", "2", "3", "0-1")
	reload()
	are("after the move and a reload", "2", "3", "0-1")
	// With another container, systemd writes the cgroups beside it.
	container("a", "a3")
	reload()
	are("after another container and a reload", "2", "3", "0-1")
	released = true
	if _, err := e.Release(in); err != nil {
		t.Fatal(err)
	}
	are("released", "0-3", "0-3", "0-3") // with their quotas
	reload()
	are("after the release and a reload", "0-3", "0-3", "0-3")
}

func machine(t *testing.T) *allocate.Layout {
	all := cpuset.Range(0, 3)
	p := cputopology.Parts{Sockets: []cputopology.Socket{{CPUs: all}}, L3: []cputopology.L3{{CPUs: all}},
		NUMA: []cputopology.NUMANode{{CPUs: all, MemoryBytes: 1 << 30, Distances: []int{10}}}}
	for id := range all.All() {
		p.Cores = append(p.Cores, cpuset.Of(id))
	}
	topology, err := cputopology.New(p)
	layout, layoutErr := allocate.NewLayout(topology, cpuset.Set{})
	if err := errors.Join(err, layoutErr); err != nil {
		t.Fatal(err)
	}
	return layout
}
