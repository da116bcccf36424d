package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestFlagsForWorkflowsAreRefusedForOtherKinds checks flags of get that would have no effect.
func TestFlagsForWorkflowsAreRefusedForOtherKinds(t *testing.T) {
	for _, flag := range []string{"--status=Failed", "--archive=archive.db", "--no-color", "--no-utf8"} {
		if code, _, errOut := runAlone(t, "get", "pods", flag); code != 2 || !strings.Contains(errOut, "is for workflows") {
			t.Errorf("get pods %s: exit code %d, %s", flag, code, errOut)
		}
	}
}

// runAlone runs a command line without a cluster.
func runAlone(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var o, e strings.Builder
	code = Run(args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}
