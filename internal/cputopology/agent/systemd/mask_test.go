package systemd

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

func TestMask(t *testing.T) {
	for list, want := range map[string][]byte{"": {}, "0": {1}, "0-8": {0xff, 1}, "3,17": {8, 0, 2}} {
		if got := mask(cpuset.MustParse(list)); !bytes.Equal(got, want) {
			t.Errorf("%q: %v, want %v", list, got, want)
		}
	}
}

// TestAMissingSocketIsAnError: the agent reports it, with the path.
func TestAMissingSocketIsAnError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "private")
	units := New(socket)
	defer units.Close()
	if err := units.Allow("a.scope", cpuset.Of(1), nil, nil); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("%v; want an error that names %s", err, socket)
	}
}
