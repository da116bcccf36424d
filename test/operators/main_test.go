package operators

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// TestMain sets up a cluster of 4 nodes of 8 CPUs. When run as "TESTBINARY alone ...", the test binary
// is alone.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "alone" {
		if err := alone(os.Args[2], os.Args[3], os.Args[4:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	managertest.Main(m, localtest.WithControllerManager(), localtest.WithInstall(),
		localtest.WithNodes(localcluster.Nodes{Count: 4, CPU: "8", Memory: "16Gi"}))
}

// alone runs a command in a network of its own, in which only the API server answers, under its
// address: operators listen on all addresses of fixed ports. Connections to address go to the Unix
// socket, which belongs to the network outside.
func alone(socket, address string, command []string) error {
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go forward(l, "unix", socket)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// forward connects what l accepts to an address, until l is closed.
func forward(l net.Listener, network, address string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial(network, address)
			if err != nil {
				return
			}
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, in)
				out.Close()
			}()
			_, _ = io.Copy(in, out)
		}()
	}
}
