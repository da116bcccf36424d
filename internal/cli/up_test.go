package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestLocalClusterVerbsRefuseWrongUsageByName(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"up --nodes -1", exitUsage, "--nodes -1: not between 0 and 20000"},
		{"up --nodes many", exitUsage, `invalid argument "many" for "--nodes"`},
		{"up --node-pods 0", exitUsage, "--node-pods 0: not between 1 and 10000"},
		{"up --node-cpu much", exitUsage, `--node-cpu "much"`},
		{"up --node-memory 0", exitUsage, `--node-memory "0": not positive`},
		{"up --name Big", exitUsage, `--name "Big"`},
		{"up big", exitUsage, `unknown command "big"`},
		{"down --name none", exitFailed, `no local cluster "none"; 'lockstep up' starts one`},
		{"down --all --name none", exitFailed, "name all"},
		{"status --name none", exitFailed, `no local cluster "none"`},
		{"status -o table", exitUsage, `want json, yaml or wide`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Run(strings.Fields(tt.args), strings.NewReader(""), &out, &errOut)
			if code != tt.code || !strings.Contains(errOut.String(), tt.want) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q in it", code, tt.code, errOut.String(), tt.want)
			}
		})
	}
}
