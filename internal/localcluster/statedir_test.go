package localcluster_test

import (
	"testing"

	"lockstep.dev/lockstep/internal/localcluster"
)

func TestStateDir(t *testing.T) {
	t.Setenv("HOME", "/home/user")
	for set, want := range map[string]string{
		"/var/state": "/var/state/lockstep",
		"relative":   "/home/user/.local/state/lockstep",
		"":           "/home/user/.local/state/lockstep",
	} {
		t.Setenv("XDG_STATE_HOME", set)
		if got, err := localcluster.StateDir(); got != want || err != nil {
			t.Errorf("XDG_STATE_HOME=%q: %q, error %v", set, got, err)
		}
	}
}
