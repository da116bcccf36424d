package rig

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ownerVariable is the environment variable that makes the test binary a measurement that lives
// until it is killed.
const ownerVariable = "RIG_TEST_OWNER"

func TestMain(m *testing.M) {
	if state := os.Getenv(ownerVariable); state != "" {
		h, err := newWorkDir(state)
		fmt.Println(h.dir, err)
		select {}
	}
	os.Exit(m.Run())
}

func TestWhatAKilledMeasurementLeftIsRemoved(t *testing.T) {
	state := t.TempDir()
	own, err := newWorkDir(state)
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(state, "bench-of-somebody-else")
	if err := os.MkdirAll(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+state)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	theirs, found := strings.CutSuffix(strings.TrimSpace(line), " <nil>")
	if !found {
		t.Fatal(line)
	}
	if err := os.MkdirAll(filepath.Join(theirs, "etcd", "member"), 0o700); err != nil {
		t.Fatal(err)
	}

	expect := func(removed int, left ...string) {
		t.Helper()
		if n, err := removeStale(state); n != removed || err != nil {
			t.Errorf("%d removed, want %d: %v", n, removed, err)
		}
		for _, dir := range left {
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		}
		if dirs, err := os.ReadDir(state); len(dirs) != len(left) {
			t.Errorf("left are %v, %v", dirs, err)
		}
	}
	expect(0, own.dir, foreign, theirs)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	expect(1, own.dir, foreign)
	if err := own.remove(); err != nil {
		t.Fatal(err)
	}
	expect(0, foreign)
}
