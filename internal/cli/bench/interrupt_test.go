package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep.dev/lockstep/internal/lab/jobs"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestInterruptingLeavesAPartialResultAndNoProcesses interrupts a measurement of two runs in its
// second one, as Ctrl-C does.
func TestInterruptingLeavesAPartialResultAndNoProcesses(t *testing.T) {
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	program, state, out := filepath.Join(t.TempDir(), "lockstep"), t.TempDir(), filepath.Join(t.TempDir(), "out")
	if text, err := exec.Command("go", "build", "-o", program, "lockstep.dev/lockstep/cmd/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	cmd := exec.Command(program, "bench", "run", "--shapes", "4x5", "--nodes", "5", "--repeat", "2", "--warm-up", "10", "--without-floor", "--durable=false",
		"--out", out, "--export", "markdown")
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state, "LOCKSTEP_KUBE="+kube)
	var table bytes.Buffer
	cmd.Stdout = &table
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(progress)
	said := ""
	for lines.Scan() {
		said += lines.Text() + "\n"
		if strings.Contains(lines.Text(), "[2/2]") && strings.Contains(lines.Text(), "warming up") {
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Fatalf("%v\n%s", err, said)
	}
	rep := &jobs.Report{}
	if err := series.Read(out, rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Runs) != 2 || rep.Runs[0].Error != "" || rep.Runs[0].Scheduled != 20 || !strings.HasPrefix(rep.Runs[1].Error, "interrupted: ") {
		for _, r := range rep.Runs {
			t.Errorf("%s: error %q, %d scheduled", r.Title(), r.Error, r.Scheduled)
		}
	}
	for _, name := range []string{series.PageFile, "report.md", filepath.Join("01-lockstep-4x5-gang", "events.csv.gz")} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(table.String(), "lockstep") {
		t.Errorf("no table of the first run:\n%s", table.String())
	}
	if left, err := os.ReadDir(filepath.Join(state, "lockstep", "bench")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	localtest.Eventually(t, "the end of all processes", func() error {
		commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range commands {
			if command, err := os.ReadFile(path); err == nil && bytes.Contains(command, []byte(state)) {
				return fmt.Errorf("%s still runs: %s", path, bytes.ReplaceAll(command, []byte{0}, []byte{' '}))
			}
		}
		return nil
	})
}
