package topology_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

func TestTopologyVerbs(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		out  string // part of stdout, or of stderr if the code is not 0
	}{
		"a built-in machine":        {[]string{"show", "--machine", "amd256-nps4"}, command.ExitOK, "L3 #1 16 MiB [4 132][5 133][6 134][7 135]"},
		"an unknown machine":        {[]string{"show", "--machine", "pdp11"}, command.ExitUsage, "there are: intel104"},
		"an empty sysfs root":       {[]string{"show", "--sysfs", t.TempDir()}, command.ExitFailed, "sys/devices/system/cpu/online: "},
		"an unknown form":           {[]string{"show", "-o", "xml"}, command.ExitUsage, "want json or html"},
		"a small simulation":        {[]string{"simulate", "--nodes", "1", "--seeds", "1", "--machine", "vm8", "--mix", "small"}, command.ExitOK, "least-allocated+packed-cores"},
		"a load above 1":            {[]string{"simulate", "--load", "85"}, command.ExitUsage, "--load must be above 0 and at most 1"},
		"an unknown policy":         {[]string{"simulate", "--policy", "best"}, command.ExitUsage, "there are lockstep"},
		"an unknown mix":            {[]string{"simulate", "--mix", "none"}, command.ExitUsage, "there are: [study"},
		"sizes of one's own":        {[]string{"simulate", "--nodes", "1", "--seeds", "1", "--machine", "vm8", "--sizes", "3:2,1-2"}, command.ExitOK, "3:2,1-2"},
		"sizes that are none":       {[]string{"simulate", "--sizes", "many"}, command.ExitUsage, "--sizes: "},
		"a mixed cluster":           {[]string{"simulate", "--seeds", "1", "--machine", "vm8:2,intel104:1", "--mix", "small"}, command.ExitOK, "vm8:2 + intel104:1"},
		"a count that is none":      {[]string{"simulate", "--machine", "vm8:x"}, command.ExitUsage, "must be from 1 to"},
		"a sysfs without CPUs":      {[]string{"simulate", "--sysfs", t.TempDir() + ":2"}, command.ExitFailed, "sys/devices/system/cpu/online: "},
		"the mix of no cluster":     {[]string{"simulate", "--mix", "cluster"}, command.ExitUsage, "name one with --cluster or --from-dump"},
		"topology without its verb": {nil, command.ExitUsage, "topology show|simulate|repack"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := cli.Run(append([]string{"topology"}, c.args...), strings.NewReader(""), &out, &errOut)
			text := out.String()
			if c.code != command.ExitOK {
				text = errOut.String()
			}
			if code != c.code || !strings.Contains(text, c.out) {
				t.Fatalf("exit code %d, want %d; %q not in:\n%s%s", code, c.code, c.out, out.String(), errOut.String())
			}
		})
	}
}

func TestTopologyShowAsJSONReadsBack(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := cli.Run([]string{"topology", "show", "--machine", "sparse48", "-o", "json"}, strings.NewReader(""), &out, &errOut); code != command.ExitOK {
		t.Fatal(errOut.String())
	}
	var c topologyv1alpha1.NodeTopologySpec
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	if topo, err := cputopology.Decode(c); err != nil || len(topo.CPUs) != 48 {
		t.Fatalf("%v, %v", topo, err)
	}
}

// clusterDump returns a list of two nodes, the second without a NodeTopology, and pods on the
// first.
func clusterDump(t *testing.T) string {
	spec := machines.AMD256NPS1.MustTopology().Encode()
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{
		map[string]any{"apiVersion": "topology.lockstep.dev/v1alpha1", "kind": "NodeTopology", "metadata": map[string]any{"name": "a"}, "spec": spec},
		map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a"}},
		map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "b"}},
		dumpedPod(t, "one", 4, "0-1,128-129"),
		dumpedPod(t, "two", 4, "4-5,132-133"),
		dumpedPod(t, "split", 2, "8,12"),
		dumpedPod(t, "waiting", 2, ""),
		map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "ordinary", "namespace": "default"}},
	}}
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func dumpedPod(t *testing.T, name string, cpus int, on string) map[string]any {
	annotations := map[string]string{"cpu.lockstep.dev/request": "true"}
	spec := map[string]any{"containers": []any{map[string]any{"name": "c", "resources": map[string]any{"limits": map[string]string{"cpu": fmt.Sprint(cpus)}}}}}
	if on != "" {
		r, err := json.Marshal(request.Result{Version: 1, Node: "a", Containers: map[string]request.ContainerResult{"c": {CPUs: cpuset.MustParse(on), Share: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		annotations[request.LockstepResult] = string(r)
		spec["nodeName"] = "a"
	}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default", "uid": "uid-" + name, "annotations": annotations}, "spec": spec}
}

func TestTopologyOfDumpedClusters(t *testing.T) {
	file := clusterDump(t)
	page := filepath.Join(t.TempDir(), "a.html")
	for name, c := range map[string]struct {
		args []string
		code int
		out  []string // parts of stdout, or of stderr if the code is not 0
	}{
		"a node with its pods":        {[]string{"show", "a"}, command.ExitOK, []string{"10 CPUs held by 3 pods, 246 idle", "default/split", "default/split  2     2   1     8,12"}},
		"as a page":                   {[]string{"show", "a", "-o", "html"}, command.ExitOK, []string{"<!doctype html>", "default/two"}},
		"as a page in a file":         {[]string{"show", "a", "--html", page}, command.ExitOK, nil},
		"an unknown node":             {[]string{"show", "z"}, command.ExitFailed, []string{`node "z" is not known; known are a`}},
		"no node named":               {[]string{"show"}, command.ExitUsage, []string{"which node of the dump"}},
		"a node with an assumed make": {[]string{"show", "b", "--assume", "intel104"}, command.ExitOK, []string{"104 idle"}},
		"policies on its pods":        {[]string{"simulate", "--seeds", "1"}, command.ExitOK, []string{"as it is", "33.33 %", "kubelet-static-like"}},
		"a plan of moves":             {[]string{"repack", "--dry-run"}, command.ExitOK, []string{"default/two"}},
		"a plan as JSON":              {[]string{"repack", "a", "--dry-run", "-o", "json"}, command.ExitOK, []string{`"freed": [`}},
		"a plan as YAML":              {[]string{"repack", "a", "--dry-run", "-o", "yaml"}, command.ExitOK, []string{"schemaVersion: v1", "freed:"}},
		"a dump is not repacked":      {[]string{"repack", "a"}, command.ExitUsage, []string{"--dry-run"}},
		"no nodes":                    {[]string{"repack"}, command.ExitUsage, []string{"--all"}},
		"nodes and all":               {[]string{"repack", "a", "--all"}, command.ExitUsage, []string{"not both"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := cli.Run(append(append([]string{"topology"}, c.args...), "--from-dump", file), strings.NewReader(""), &out, &errOut)
			text := out.String()
			if c.code != command.ExitOK {
				text = errOut.String()
			}
			for _, want := range c.out {
				if code != c.code || !strings.Contains(text, want) {
					t.Fatalf("exit code %d, want %d; %q not in:\n%s%s", code, c.code, want, out.String(), errOut.String())
				}
			}
		})
	}
	if data, err := os.ReadFile(page); err != nil || !strings.Contains(string(data), "default/one") {
		t.Errorf("the page: %v", err)
	}
}

// TestPlanningWithMachinesAndPodsOfOnesOwn simulates copied sysfs trees beside a model, and a dump's
// pods on other machines.
func TestPlanningWithMachinesAndPodsOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	small := machines.Machine{Name: "small", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 4, Threads: 2, CoresPerL3: 2,
		L3Bytes: 1 << 20, MemoryBytesPerNUMA: 1 << 30}
	if err := small.Write(filepath.Join(dir, "rack-a")); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		var out, errOut bytes.Buffer
		args = append([]string{"topology", "simulate", "--seeds", "1", "--policy", "lockstep,kubelet-static-uncore-like"}, args...)
		if code := cli.Run(args, strings.NewReader(""), &out, &errOut); code != command.ExitOK {
			t.Fatalf("%v: %s", args, errOut.String())
		}
		return out.String()
	}
	sysfs, dump := filepath.Join(dir, "rack-a"), clusterDump(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--sysfs", sysfs + ":3", "--sizes", "2"}, []string{"rack-a ", " 3 ", " 2 "}},
		{[]string{"--sysfs", sysfs, "--nodes", "2", "--sizes", "2"}, []string{"rack-a ", " 2 "}},
		{[]string{"--sysfs", sysfs + ":3", "--machine", "vm8:1", "--mix", "small"}, []string{"vm8:1 + rack-a:3", "small", "kubelet-static-uncore-like"}},
		{[]string{"--from-dump", dump, "--sysfs", sysfs + ":1"}, []string{"rack-a ", "its pods"}},
		{[]string{"--from-dump", dump, "--machine", "vm8:3", "--mix", "cluster"}, []string{"vm8 ", "cluster "}},
		{[]string{"--from-dump", dump, "--mix", "cluster"}, []string{"cluster "}},
	} {
		out := run(c.args...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v: %q is missing in\n%s", c.args, want, out)
			}
		}
		if strings.Contains(out, "as it is") {
			t.Errorf("%v: the present placement is on other machines:\n%s", c.args, out)
		}
	}
	// Four pods of 12 CPUs together do not fit 8 CPUs.
	if out := run("--from-dump", dump, "--sysfs", sysfs+":1", "-o", "json"); !strings.Contains(out, `"unplaced": 1`) {
		t.Errorf("nothing is unplaced:\n%s", out)
	}
}
