package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/dns"
)

// bridge is the name of the bridge that connects the nodes.
const bridge = "nodes"

func runNetwork(ctx context.Context, spec realnodes.Spec) error {
	if err := ownMounts(); err != nil {
		return err
	}
	//   1. Create the bridge with the gateway's address.
	if err := makeBridge(); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	//   2. Relay connections to the API server and from it.
	api, err := net.Listen("tcp", fmt.Sprintf("%s:%d", realnodes.Gateway, realnodes.APIPort))
	if err != nil {
		return err
	}
	go relay(ctx, api, "unix", spec.APISocket())
	egress, err := listenUnix(spec.EgressSocket())
	if err != nil {
		return err
	}
	go serveConnect(ctx, egress)
	//   3. Serve DNS and run the nodes.
	config, err := clientcmd.BuildConfigFromFlags("", spec.Kubeconfig())
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.UserAgent = "lockstep-kube/real-nodes"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	names, err := dns.New(client, realnodes.ClusterDomain)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return names.Run(ctx, realnodes.Gateway+":53") })
	for _, n := range spec.Nodes() {
		group.Go(func() error { return keepNode(ctx, spec, n, client) })
	}
	return group.Wait()
}

// ownMounts separates the mount namespace from the host's, shares later mounts with child
// namespaces, as a machine's first process does, and mounts a /proc of the PID namespace.
func ownMounts() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	return nil
}

func makeBridge() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	return address(link, realnodes.Gateway)
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// address assigns an address of the nodes' network to a link and sets the link up.
func address(link netlink.Link, ip string) error {
	addr, err := netlink.ParseAddr(fmt.Sprintf("%s/%d", ip, realnodes.NetworkBits))
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// keepNode runs a node until ctx is done. With Restart a node that ends is started again, like a
// machine that reboots. Otherwise its Node object is deleted, so that the owners of its pods, which
// have ended, may replace them.
func keepNode(ctx context.Context, spec realnodes.Spec, n realnodes.Node, client kubernetes.Interface) error {
	for {
		err := powerOn(ctx, spec, n)
		if ctx.Err() != nil {
			return nil
		}
		slog.Error("node ended", "node", n.Name(), "error", err)
		if !spec.Restart {
			return deleteNode(ctx, n, client)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// powerOn runs a node until it ends, and returns the reason. The node is killed when ctx is done.
func powerOn(ctx context.Context, spec realnodes.Spec, n realnodes.Node) error {
	wire, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := self(RoleNode, spec.Dir, n.Number)
	cmd.ExtraFiles = []*os.File{wire}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: nodeNamespaces}
	err = cmd.Start()
	wire.Close()
	if err != nil {
		ours.Close()
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := addInterface(n, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		ours.Close()
		_ = cmd.Wait()
		return fmt.Errorf("network interface: %w", err)
	}
	ours.Close() // tells the node that its interface exists
	err = cmd.Wait()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return fmt.Errorf("its first process: %s", cmd.ProcessState)
	}
	return err
}

// addInterface creates a node's eth0, with its peer at the bridge, and the route to the node's
// pods.
func addInterface(n realnodes.Node, pid int) error {
	hub, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = n.Name(), hub.Attrs().Index
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	_, pods, err := net.ParseCIDR(n.PodCIDR())
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: hub.Attrs().Index, Dst: pods, Gw: n.IP()})
}

// deleteNode deletes a dead node's object. It retries until it succeeds or ctx is done.
func deleteNode(ctx context.Context, n realnodes.Node, client kubernetes.Interface) error {
	for {
		err := client.CoreV1().Nodes().Delete(ctx, n.Name(), metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			slog.Info("node is off: its object is deleted", "node", n.Name())
			return nil
		}
		slog.Warn("the object of a node that is off cannot be deleted", "node", n.Name(), "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}
