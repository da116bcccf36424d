package localcluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Ports are taken below the range of ephemeral ports, so that no client socket of another process
// can take a port between the choice and the component's bind.
const (
	portFirst = 20000
	portCount = 10000
)

// portLease is a port reserved among all local clusters of this machine while the lease's socket is
// open. The socket is in Linux's abstract namespace: it leaves no file, and the kernel closes it
// when the process ends.
type portLease struct {
	port int
	lock net.Listener
}

func (l *portLease) release() { l.lock.Close() }

// leasePort reserves a free loopback port.
func leasePort() (*portLease, error) {
	start := rand.IntN(portCount)
	for i := range portCount {
		port := portFirst + (start+i)%portCount
		lock, err := net.Listen("unix", fmt.Sprintf("@lockstep.dev/port/%d", port))
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			lock.Close()
			continue
		}
		probe.Close()
		return &portLease{port, lock}, nil
	}
	return nil, fmt.Errorf("no free port among %d-%d on 127.0.0.1: %w", portFirst, portFirst+portCount-1,
		syscall.EADDRINUSE)
}

// LeasePort reserves a free loopback port among all local clusters of this machine, until release is
// called or this process ends.
func LeasePort() (port int, release func(), err error) {
	l, err := leasePort()
	if err != nil {
		return 0, nil, err
	}
	return l.port, l.release, nil
}
