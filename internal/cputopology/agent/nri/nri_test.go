package nri

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/util/wait"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// runtime is the runtime's side of the protocol, as containerd and CRI-O embed it. Its Stop does
// not close the connection as the end of a runtime's process would, so the connection goes through
// a relay.
type runtime struct {
	*adaptation.Adaptation
	relay net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func startRuntime(t *testing.T, socket string, containers ...*api.Container) *runtime {
	t.Helper()
	out := &runtime{}
	inner := fmt.Sprintf("%s.%d", socket, time.Now().UnixNano())
	r, err := adaptation.New("test", "1.0",
		func(ctx context.Context, sync adaptation.SyncCB) error {
			_, err := sync(ctx, nil, containers)
			return err
		},
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(inner), adaptation.WithPluginPath(t.TempDir()), adaptation.WithPluginConfigPath(t.TempDir()))
	if err == nil {
		err = r.Start()
	}
	if err == nil {
		out.Adaptation = r
		out.relay, err = net.Listen("unix", socket)
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			from, err := out.relay.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", inner)
			if err != nil {
				from.Close()
				continue
			}
			out.mu.Lock()
			out.conns = append(out.conns, from, to)
			out.mu.Unlock()
			go func() { _, _ = io.Copy(to, from); to.Close() }()
			go func() { _, _ = io.Copy(from, to); from.Close() }()
		}
	}()
	return out
}

// end simulates the end of the runtime's process.
func (r *runtime) end() {
	r.relay.Close()
	r.mu.Lock()
	for _, c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.Stop()
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

func TestTheRuntimeIsToldBeforeItMakesAContainer(t *testing.T) {
	dir, err := os.MkdirTemp("", "nri-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "nri.sock")
	mems := cpuset.Of(1)
	p := New(Config{Socket: socket, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Want: func(uid, container string, annotations map[string]string) (Assignment, bool) {
		switch uid + "/" + container {
		case "u/a":
			return Assignment{CPUs: cpuset.MustParse("2-3,8")}, true
		case "u/b":
			return Assignment{CPUs: cpuset.Of(4), Mems: &mems}, true
		case "u/c":
			return Assignment{CPUs: cpuset.MustParse(annotations["cpus"])}, true
		}
		return Assignment{}, false
	}})
	r := startRuntime(t, socket, &api.Container{Id: "old", Name: "kept"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	eventually(t, "the connection", p.Connected)
	if name, found := p.Name("old"); !found || name != "kept" {
		t.Errorf("a container that was there is called %q", name)
	}

	pod := &api.PodSandbox{Id: "s", Uid: "u", Name: "p", Namespace: "ns", Annotations: map[string]string{"cpus": "5-6"}}
	create := func(r *runtime, id, name string) *api.LinuxCPU {
		t.Helper()
		var made *api.CreateContainerResponse
		// the runtime uses a plugin shortly after it has synchronized it.
		eventually(t, "the runtime to ask", func() bool {
			var err error
			made, err = r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: id, PodSandboxId: "s", Name: name}})
			if err != nil {
				t.Fatal(err)
			}
			_, asked := p.Name(id)
			return asked
		})
		return made.GetAdjust().GetLinux().GetResources().GetCpu()
	}
	for _, c := range []struct{ name, cpus, mems string }{{"a", "2-3,8", ""}, {"b", "4", "1"}, {"c", "5-6", ""}, {"unknown", "", ""}} {
		if cpu := create(r, "id-"+c.name, c.name); cpu.GetCpus() != c.cpus || cpu.GetMems() != c.mems {
			t.Errorf("container %s is made with CPUs %q and memory nodes %q", c.name, cpu.GetCpus(), cpu.GetMems())
		}
	}
	// A client tries to widen the CPU set.
	wide := &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0-15"}}
	updated, err := r.UpdateContainer(t.Context(), &api.UpdateContainerRequest{Pod: pod, Container: &api.Container{Id: "id-a", PodSandboxId: "s", Name: "a"}, LinuxResources: wide})
	if err != nil {
		t.Fatal(err)
	}
	if len(updated.GetUpdate()) != 1 || updated.GetUpdate()[0].GetLinux().GetResources().GetCpu().GetCpus() != "2-3,8" {
		t.Errorf("an update becomes %v", updated.GetUpdate())
	}
	if err := r.RemoveContainer(t.Context(), &api.RemoveContainerRequest{Pod: pod, Container: &api.Container{Id: "id-a", PodSandboxId: "s", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if _, found := p.Name("id-a"); found {
		t.Error("a container that is gone has a name")
	}

	// The runtime restarts.
	r.end()
	eventually(t, "the end of the connection", func() bool { return !p.Connected() })
	again := startRuntime(t, socket)
	defer again.end()
	eventually(t, "the next connection", p.Connected)
	if cpu := create(again, "id-2", "b"); cpu.GetCpus() != "4" {
		t.Errorf("after the restart a container is made with CPUs %q", cpu.GetCpus())
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
}
