package stores

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// patience bounds every wait. It is far more than any server takes to start.
const patience = 2 * time.Minute

// fetched returns the path of what hack/stores.sh has fetched, or skips the test.
func fetched(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin/stores", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there: run hack/stores.sh", name)
	}
	return path
}

// program returns the path of a program of the machine, or skips the test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// ports returns free ports.
func ports(t *testing.T, n int) []int {
	t.Helper()
	var free []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // all at the end, so that they differ
		free = append(free, l.Addr().(*net.TCPAddr).Port)
	}
	return free
}

// start runs a server until the end of the test, and waits until it listens on the port.
func start(t *testing.T, port int, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	said := func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text[max(0, len(text)-4000):])
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		log.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(name), said())
		}
	})
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		select {
		case err := <-ended:
			ended <- err
			return false, fmt.Errorf("it ended: %w", err)
		default:
		}
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said())
	}
}

// file writes a file and returns its path.
func file(t *testing.T, text string, elem ...string) string {
	t.Helper()
	name := filepath.Join(elem...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}
