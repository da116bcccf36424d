package systemd

import (
	"bytes"
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
