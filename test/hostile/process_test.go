package hostile

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
)

// process is a manager that runs as a process of its own. If it panics or uses too much memory, it
// ends and leaves its log.
type process struct {
	cmd     *exec.Cmd
	log     string
	ended   chan struct{}
	tooMuch bool // ended because of its memory
}

// memoryMax is the memory that a manager may use, in bytes.
const memoryMax = 2 << 30

func startProcess(t *testing.T, c *localcluster.Cluster) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{log: filepath.Join(t.TempDir(), "manager.log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.Command(self, "manager", "--kubeconfig", c.ManagerKubeconfig(), "--leader-elect=false", "--metrics-bind-address=", "--health-probe-bind-address=")
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	go p.watchMemory()
	t.Cleanup(func() { p.stop() })
	return p
}

// watchMemory ends the process when it uses more than memoryMax.
func (p *process) watchMemory() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if err != nil {
			return
		}
		if fields := strings.Fields(string(data)); len(fields) > 1 {
			if pages, _ := strconv.Atoi(fields[1]); pages*os.Getpagesize() > memoryMax {
				p.tooMuch = true
				_ = p.cmd.Process.Kill()
			}
		}
	}
}

// stop ends the process. If the process had already ended, stop returns why.
func (p *process) stop() (before error) {
	select {
	case <-p.ended:
		data, _ := os.ReadFile(p.log)
		if p.tooMuch {
			return fmt.Errorf("the manager took more than %d bytes", memoryMax)
		}
		for _, fatal := range []string{"panic: ", "fatal error: "} {
			if i := bytes.Index(data, []byte(fatal)); i >= 0 {
				data = data[i:]
				break
			}
		}
		return fmt.Errorf("the manager has ended: %s", data[:min(len(data), 2000)])
	default:
	}
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return nil
}
