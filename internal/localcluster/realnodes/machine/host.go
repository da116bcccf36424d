package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// The kinds of processes, as values of the flag --role.
const (
	RoleHost    = "host"
	RoleNetwork = "network"
	RoleNode    = "node"
)

// Run runs one of the processes for the real nodes in dir until ctx is done. number is the node's
// number.
func Run(ctx context.Context, role, dir string, number int) error {
	spec, err := realnodes.Read(dir)
	if err != nil {
		return err
	}
	switch role {
	case RoleHost:
		return runHost(ctx, spec)
	case RoleNetwork:
		return runNetwork(ctx, spec)
	case RoleNode:
		return runNode(ctx, spec, spec.Node(number))
	}
	return fmt.Errorf("unknown role %q", role)
}

// thisProgram is the path of the running program, in any mount namespace; programName is the name
// that process lists show.
const (
	thisProgram = "/proc/self/exe"
	programName = "lockstep-kube"
)

// self returns the command that runs this program in another role.
func self(role, dir string, number int) *exec.Cmd {
	cmd := exec.Command(thisProgram, "real-nodes", "--role="+role, "--dir="+dir, "--number="+strconv.Itoa(number))
	cmd.Args[0] = programName
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// networkNamespaces and nodeNamespaces are the new namespaces of the two kinds of first processes.
const (
	networkNamespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC
	nodeNamespaces    = networkNamespaces | syscall.CLONE_NEWUTS
)

func runHost(ctx context.Context, spec realnodes.Spec) error {
	// Remove the cgroups that a killed run left: they may have the limits of another spec.
	if err := localcluster.RemoveRealNodes(spec.Cluster, spec.Dir); err != nil {
		return err
	}
	if err := spec.MakeCgroups(); err != nil {
		return err
	}
	api, err := listenUnix(spec.APISocket())
	if err != nil {
		return err
	}
	go relay(ctx, api, "tcp", fmt.Sprintf("127.0.0.1:%d", spec.APIServerPort))

	// The kernel sends Pdeathsig when the forking thread ends: a locked thread does not end before
	// the process.
	runtime.LockOSThread()
	cmd := self(RoleNetwork, spec.Dir, 0)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: networkNamespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := localcluster.RecordRealNodes(spec.Dir, cmd.Process.Pid); err != nil {
		return err // the child ends with this process
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	go serveHealth(ctx, spec)

	select {
	case <-ctx.Done():
		// The nodes need no graceful end: their state is in the API.
		_ = cmd.Process.Kill()
		<-ended
		err = nil
	case err = <-ended:
		err = fmt.Errorf("the nodes' network ended: %w", err)
	}
	return errors.Join(err, realnodes.RemoveCgroups(spec.Cluster, spec.Dir))
}

// serveHealth answers /readyz with 200 if all kubelets are healthy, and otherwise with 503 and the
// error.
func serveHealth(ctx context.Context, spec realnodes.Spec) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := healthy(r.Context(), spec); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", spec.HealthPort), Handler: mux,
		ReadHeaderTimeout: dialTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		slog.Error("health is not served", "error", err)
	}
}

// healthTimeout bounds one health check of all kubelets.
const healthTimeout = 3 * time.Second

func healthy(ctx context.Context, spec realnodes.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return Dial(ctx, spec, address)
		},
	}}
	for _, n := range spec.Nodes() {
		group.Go(func() error {
			url := fmt.Sprintf("http://%s:%d/healthz", n.IP(), realnodes.KubeletHealthPort)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return fmt.Errorf("kubelet of %s: %w", n.Name(), err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("kubelet of %s: %s", n.Name(), resp.Status)
			}
			return nil
		})
	}
	return group.Wait()
}
