package local_test

import (
	"bytes"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cli/command"
)

func TestLocalClusterVerbsRefuseWrongUsageByName(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"up --nodes -1", command.ExitUsage, "--nodes -1: not between 0 and 20000"},
		{"up --nodes many", command.ExitUsage, `invalid argument "many" for "--nodes"`},
		{"up --node-pods 0", command.ExitUsage, "--node-pods 0: not between 1 and 10000"},
		{"up --node-cpu much", command.ExitUsage, `--node-cpu "much"`},
		{"up --node-memory 0", command.ExitUsage, `--node-memory "0": not positive`},
		{"up --name Big", command.ExitUsage, `--name "Big"`},
		{"up big", command.ExitUsage, `unknown command "big"`},
		{"down --name none", command.ExitFailed, `no local cluster "none"; 'lockstep up' starts one`},
		{"down --all --name none", command.ExitFailed, "name all"},
		{"status --name none", command.ExitFailed, `no local cluster "none"`},
		{"status -o table", command.ExitUsage, `want json, yaml or wide`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := cli.Run(strings.Fields(tt.args), strings.NewReader(""), &out, &errOut)
			if code != tt.code || !strings.Contains(errOut.String(), tt.want) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q in it", code, tt.code, errOut.String(), tt.want)
			}
		})
	}
}
