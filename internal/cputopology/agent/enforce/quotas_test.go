package enforce

import (
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
)

// quotas returns the quotas of the node's cgroups.
func (w *world) quotas() cgroup.Quotas {
	if n, real := w.node.(*realNode); real {
		return cgroup.Quotas{Files: n.cpu, Version: w.version}
	}
	return cgroup.Quotas{Files: w.node, Version: w.version}
}

// TestQuotasFollowTheCPUs follows the CFS quotas of a pod with a pinned container and one of the pool,
// through pinning, drift, burst, a failure, and release.
func TestQuotasFollowTheCPUs(t *testing.T) {
	onAllWith(t, 4, func(t *testing.T, w *world) {
		w.e.cfg.Quotas = w.quotas()
		pod := path.Dir(leaf("a", "c"))
		// As a kubelet does: the pod has the sum of the limits.
		w.limits = map[string]map[string]int64{"a": {"c": 1000, "log": 500, desired.WholePod: 1500}, "b": {}}
		w.start(leaf("a", "c"))
		w.start(leaf("a", "log"))
		w.start(leaf("b", "c"))
		for _, q := range []struct {
			dir   string
			milli int64
		}{{pod, 1500}, {leaf("a", "c"), 1000}, {leaf("a", "log"), 500}} {
			check(t, w.quotas().Set(q.dir, q.milli))
		}
		are := func(what string, wantPod, wantC, wantLog int64) {
			t.Helper()
			for dir, want := range map[string]int64{pod: wantPod, leaf("a", "c"): wantC, leaf("a", "log"): wantLog, leaf("b", "c"): 0} {
				if got, err := w.quotas().Get(dir); err != nil || got != want {
					t.Errorf("%s: %s has a quota of %d, %v; want %d", what, dir, got, err, want)
				}
			}
		}
		is := func(c string) pods { return pods{"a": {"c": c, "log": ""}, "b": {"c": ""}} }
		settled := func(p pods) {
			t.Helper()
			w.pass(p)
			if out := w.pass(p); out.Writes != 0 || len(out.Problems) != 0 {
				t.Errorf("a second pass: %+v", out)
			}
		}
		settled(is(""))
		are("not pinned", 1500, 1000, 500)
		settled(is("0"))
		are("pinned", 0, 0, 500)
		check(t, w.quotas().Set(leaf("a", "c"), 1000))
		settled(is("0"))
		are("after the kubelet has written", 0, 0, 500)
		settled(is("+0-1"))
		are("burst over four CPUs", 4500, 4000, 500)

		w.fail(func(name, content string) error {
			if strings.HasPrefix(name, pod+"/") && strings.HasSuffix(name, "cpuset.cpus") && content == "2\n" {
				return unix.EIO
			}
			return nil
		})
		if out := w.pass(is("2")); len(out.Problems) != 1 {
			t.Errorf("%+v", out)
		}
		are("it cannot be pinned", 1500, 1000, 500)
		w.fail(nil)
		w.now = w.now.Add(retryMax)
		settled(is("2"))
		are("it can be pinned again", 0, 0, 500)
		settled(is(""))
		are("it has lost its CPUs", 1500, 1000, 500)
		settled(is("2"))
		are("it has CPUs again", 0, 0, 500)

		w.restart()
		w.e.cfg.Quotas = w.quotas()
		_, err := w.e.Release(w.input(is("2")))
		check(t, err)
		are("released", 1500, 1000, 500)
	})
}

// TestAQuotaThatCannotBeChanged checks that the pod keeps its CPUs, and that the problem is reported.
func TestAQuotaThatCannotBeChanged(t *testing.T) {
	for _, version := range []cgroup.Version{cgroup.V1, cgroup.V2} {
		t.Run(version.String(), func(t *testing.T) {
			w := newWorld(t, newFakeNode(t, version, 2), version, 2)
			w.e.cfg.Quotas = w.quotas()
			w.limits = map[string]map[string]int64{"a": {"c": 1000, desired.WholePod: 1000}}
			w.start(leaf("a", "c"))
			check(t, w.quotas().Set(leaf("a", "c"), 1000))
			tries := 0
			w.fail(func(name, _ string) error {
				if strings.HasPrefix(path.Base(name), "cpu.") {
					tries++
					return unix.EPERM
				}
				return nil
			})
			for range 3 {
				out := w.pass(pods{"a": {"c": "0"}})
				if out.Pinned != 1 || len(out.Problems) != 1 || !strings.Contains(out.Problems[0].Message, "CFS quota") || tries != 1 {
					t.Errorf("%d tries, %+v", tries, out)
				}
			}
			w.is("a c 0")
			w.fail(nil)
			w.now = w.now.Add(quotaRetry)
			if out := w.pass(pods{"a": {"c": "0"}}); len(out.Problems) != 0 {
				t.Errorf("%+v", out)
			}
			if got, err := w.quotas().Get(leaf("a", "c")); err != nil || got != 0 {
				t.Errorf("a quota of %d, %v", got, err)
			}
		})
	}
}

// TestWithoutTheCPUController checks that cgroups without quotas are no problem.
func TestWithoutTheCPUController(t *testing.T) {
	w := newWorld(t, newFakeNode(t, cgroup.V2, 2), cgroup.V2, 2)
	w.e.cfg.Quotas = cgroup.Quotas{Files: withoutCPU{w.node}, Version: cgroup.V2}
	w.limits = map[string]map[string]int64{"a": {"c": 1000, desired.WholePod: 1000}}
	w.start(leaf("a", "c"))
	if out := w.pass(pods{"a": {"c": "0"}}); len(out.Problems) != 0 || out.Pinned != 1 {
		t.Errorf("%+v", out)
	}
}

// withoutCPU is a hierarchy whose cpu controller is not enabled.
type withoutCPU struct{ cgroup.Files }

func (f withoutCPU) ReadFile(name string) ([]byte, error) {
	if path.Base(name) == "cpu.max" {
		return nil, unix.ENOENT
	}
	return f.Files.ReadFile(name)
}
