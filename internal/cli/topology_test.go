package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
)

func TestTopologyVerbs(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		out  string // part of stdout, or of stderr if the code is not 0
	}{
		"a built-in machine":        {[]string{"show", "--machine", "amd256-nps4"}, exitOK, "L3 #1 16 MiB [4 132][5 133][6 134][7 135]"},
		"an unknown machine":        {[]string{"show", "--machine", "pdp11"}, exitUsage, "there are: intel104"},
		"an empty sysfs root":       {[]string{"show", "--sysfs", t.TempDir()}, exitFailed, "sys/devices/system/cpu/online: "},
		"an unknown form":           {[]string{"show", "-o", "xml"}, exitUsage, "not json"},
		"a small simulation":        {[]string{"simulate", "--nodes", "1", "--seeds", "1", "--machine", "vm8", "--mix", "small"}, exitOK, "least-allocated+packed-cores"},
		"a load above 1":            {[]string{"simulate", "--load", "85"}, exitUsage, "--load above 0 and at most 1"},
		"an unknown policy":         {[]string{"simulate", "--policy", "best"}, exitUsage, "there are lockstep"},
		"an unknown mix":            {[]string{"simulate", "--mix", "none"}, exitUsage, "there are: [study"},
		"topology without its verb": {nil, exitOK, "simulate"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Run(append([]string{"topology"}, c.args...), strings.NewReader(""), &out, &errOut)
			text := out.String()
			if c.code != exitOK {
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
	if code := Run([]string{"topology", "show", "--machine", "sparse48", "-o", "json"}, strings.NewReader(""), &out, &errOut); code != exitOK {
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
