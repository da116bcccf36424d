package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
)

// wireFD is the file descriptor of a pipe that ends when the node's interface exists.
const wireFD = 3

func runNode(ctx context.Context, spec realnodes.Spec, n realnodes.Node) error {
	//   1. Set up mounts, host name and network.
	if err := mountNode(spec, n); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.Name())); err != nil {
		return err
	}
	if err := connectNode(n); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	children := newReaper()
	group, ctx := errgroup.WithContext(ctx)
	inNode := func(elem ...string) string { return filepath.Join(append([]string{realnodes.InNode}, elem...)...) }
	//   2. Start containerd, and import the pause image, which every pod needs.
	group.Go(func() error {
		return children.keep(ctx, spec.Restart, inNode("logs", "containerd.log"), "containerd",
			"--config="+inNode("containerd.toml"))
	})
	if err := loadPause(ctx, children, spec.Host.Snapshotter, inNode("logs", "images.log")); err != nil {
		return fmt.Errorf("pause image: %w", err)
	}
	//   3. Start the kubelet, and service routing where the machine supports it.
	group.Go(func() error {
		return children.keep(ctx, spec.Restart, inNode("logs", "kubelet.log"), thisProgram, "kubelet",
			"--config="+inNode("kubelet.yaml"), "--kubeconfig="+inNode("kubelet.kubeconfig"), "--hostname-override="+n.Name(),
			"--node-ip="+n.IP().String(), "--node-labels="+realnodes.NodeTypeLabel+"="+realnodes.NodeTypeReal)
	})
	if spec.Host.ServiceProxy == "" {
		slog.Warn("services with a cluster IP are not routed; headless ones work", "node", n.Name(), "reason",
			spec.Host.NoServiceProxy)
	} else {
		group.Go(func() error {
			return children.keep(ctx, true, inNode("logs", "kube-proxy.log"), thisProgram, "kube-proxy",
				"--config="+inNode("kube-proxy.yaml"))
		})
	}
	//   4. Start Lockstep's agent.
	if len(spec.Agent) > 0 {
		// The kubelet's systemReserved is the other nodes' share of the machine, and no CPUs of this one.
		args := append(slices.Clone(spec.Agent[1:]), "--node-name="+n.Name(), "--kubeconfig="+inNode("agent.kubeconfig"),
			"--cgroup-root="+n.Cgroup(), "--reserved-cpus=")
		group.Go(func() error {
			return children.keep(ctx, true, inNode("logs", "agent.log"), inNode(agentProgram), args...)
		})
	}
	return group.Wait()
}

// agentProgram is the name of the agent's program in the node's own directory.
const agentProgram = "lockstep"

// tunables are kernel settings that kubelets write and that apply to the whole machine, not to a
// namespace. In a node, files with the wanted content are mounted over them, so that the machine's
// settings stay unchanged.
var tunables = map[string]string{
	"vm/overcommit_memory":     "1",
	"vm/panic_on_oom":          "0",
	"kernel/panic":             "10",
	"kernel/panic_on_oops":     "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mountNode builds the node's file system on top of the host's: directories that its programs write
// to are the node's own.
func mountNode(spec realnodes.Spec, n realnodes.Node) error {
	// Open the directories before mounts hide them.
	open := map[string]int{}
	for from, to := range map[string]string{
		".": realnodes.InNode, "run": "/run/containerd", "containerd": "/var/lib/containerd", "kubelet": "/var/lib/kubelet",
		"pod-logs": "/var/log/pods",
	} {
		fd, err := unix.Open(n.Path(from), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", n.Path(from), err)
		}
		defer unix.Close(fd)
		open[to] = fd
	}
	if len(spec.Agent) > 0 {
		fd, err := unix.Open(spec.Agent[0], unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", spec.Agent[0], err)
		}
		defer unix.Close(fd)
		open[filepath.Join(realnodes.InNode, agentProgram)] = fd
		if err := os.WriteFile(n.Path(agentProgram), nil, 0o700); err != nil {
			return err
		}
	}
	if err := ownMounts(); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	// A mount inside another one comes after it.
	for _, to := range slices.Sorted(maps.Keys(open)) {
		fd := open[to]
		if filepath.Dir(to) != realnodes.InNode {
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
		}
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", fd), to); err != nil {
			return err
		}
	}
	if err := bind(filepath.Join(realnodes.InNode, "resolv.conf"), "/etc/resolv.conf"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Mkdir("/run/tunables", 0o755); err != nil {
		return err
	}
	for name, value := range tunables {
		file := filepath.Join("/run/tunables", filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(file, filepath.Join("/proc/sys", name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + from + " on", Path: to, Err: err}
	}
	return nil
}

// connectNode waits for the node's interface and configures it.
func connectNode(n realnodes.Node) error {
	wire := os.NewFile(wireFD, "wire")
	_, err := io.ReadAll(wire)
	wire.Close()
	if err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := address(link, n.IP().String()); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(realnodes.Gateway)})
}

const (
	// containerdTimeout bounds the start of containerd, on a cold disk and a busy machine.
	containerdTimeout = time.Minute
	containerdPoll    = 50 * time.Millisecond
)

func loadPause(ctx context.Context, children *reaper, snapshotter, logPath string) error {
	archive := filepath.Join(realnodes.InNode, "pause.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	if err := errors.Join(ociimage.WritePause(f, realnodes.PauseImage), f.Close()); err != nil {
		return err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	for deadline := time.Now().Add(containerdTimeout); ; {
		conn, err := net.Dial("unix", realnodes.ContainerdSocket)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not start: %w", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(containerdPoll):
		}
	}
	return children.run(log, "ctr", realnodes.ImportArgs(realnodes.ContainerdSocket, snapshotter, archive)...)
}
