package daemon_test

import (
	"io"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/daemon"
)

func TestAgentUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no name":         {[]string{"agent"}, "--node-name or $NODE_NAME is needed"},
		"offline alone":   {[]string{"agent", "--node-name=n", "--offline"}, "--offline is for --release only"},
		"no such CPUs":    {[]string{"agent", "--node-name=n", "--reserved-cpus=a"}, "--reserved-cpus"},
		"no interval":     {[]string{"agent", "--node-name=n", "--interval=0s"}, "not positive"},
		"an argument":     {[]string{"agent", "n"}, "unknown command"},
		"an unknown flag": {[]string{"agent", "--no-such"}, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_NAME", "")
			var errOut strings.Builder
			if code := cli.Run(c.args, strings.NewReader(""), io.Discard, &errOut); code != command.ExitUsage || !strings.Contains(errOut.String(), c.want) {
				t.Errorf("exit code %d: %s", code, errOut.String())
			}
		})
	}
}

// TestAgentManifestsFlagsExist checks that the agent's DaemonSet calls this program with flags that
// exist.
func TestAgentManifestsFlagsExist(t *testing.T) {
	data, err := os.ReadFile("../../../config/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(data, &set); err != nil {
		t.Fatal(err)
	}
	c := set.Spec.Template.Spec.Containers[0]
	cmd := daemon.NewAgent(command.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, "dev")
	if len(c.Args) < 2 || c.Args[0] != cmd.Name() {
		t.Fatalf("arguments: %q", c.Args)
	}
	if err := cmd.ParseFlags(c.Args[1:]); err != nil {
		t.Error(err)
	}
}
