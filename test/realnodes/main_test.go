package realnodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

// asLockstep is an environment variable that makes the test binary behave as lockstep, so that the
// tests need no other build.
const asLockstep = "LOCKSTEP_TEST_AS_LOCKSTEP"

// missing is the reason why real nodes cannot run here, or nil.
var missing error

func TestMain(m *testing.M) {
	sandbox.Main(manager.Evaluators())
	if repositories := os.Getenv(asStores); repositories != "" {
		fmt.Fprintln(os.Stderr, serveStores(repositories))
		os.Exit(1)
	}
	if os.Getenv(asLockstep) != "" {
		os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	if _, missing = realnodes.Check(); missing != nil {
		fmt.Fprintf(os.Stderr, "SKIPPED: the tests of real nodes, because %v\n", missing)
	}
	state, err := os.MkdirTemp("", "ls-real-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for key, value := range map[string]string{asLockstep: "1", "XDG_STATE_HOME": state} {
		if err := os.Setenv(key, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := os.RemoveAll(state); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// lockstep runs a command line of lockstep and returns its standard output.
func lockstep(args ...string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	cmd := exec.Command(exe, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("lockstep %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// env is a running cluster.
type env struct {
	name   string
	dir    string
	config *rest.Config
	client kubernetes.Interface
	jobs   rest.Interface
	// took is the time from `up` until all nodes are ready.
	took time.Duration
}

// image is the image of the tests' pods: busybox.
const image = "localhost/busybox:1"

// up starts a cluster and loads the image into its real nodes.
func up(name string, flags ...string) (*env, error) {
	began := time.Now()
	if _, err := lockstep(append([]string{"up", "--name", name, "--durable=false"}, flags...)...); err != nil {
		return nil, err
	}
	e := &env{name: name, took: time.Since(began), dir: filepath.Join(os.Getenv("XDG_STATE_HOME"), "lockstep", "clusters", name)}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(e.dir, "admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	e.config = config
	if e.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if e.jobs, err = jobs(config); err != nil {
		return nil, err
	}
	root, err := busyboxRoot()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	_, err = lockstep("image", "load", root, "--name", name, "--tag", image, "--", "/bin/sh")
	return e, err
}

// busyboxRoot makes a root file system from the machine's static busybox.
func busyboxRoot() (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w: apt-get install busybox-static", err)
	}
	root, err := os.MkdirTemp("", "ls-root-")
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"bin", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return "", err
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "busybox"), program, 0o755); err != nil {
		return "", err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return "", err
	}
	for _, applet := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return root, nil
}

// shared is the cluster that most tests use. At the end its supervisor is killed, and `down` must
// then clean up.
var shared sharedEnv

type sharedEnv struct {
	once   sync.Once
	before footprint
	env    *env
	err    error
}

func (s *sharedEnv) get(t *testing.T) *env {
	t.Helper()
	skipUnlessPossible(t)
	s.once.Do(func() {
		if s.before, s.err = takeFootprint(); s.err == nil {
			s.env, s.err = up("shared", "--real-nodes=2", "--nodes=3", "--with-agent", "--with-kube-scheduler")
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.env
}

func (s *sharedEnv) end() error {
	if s.env == nil {
		return nil
	}
	if err := s.env.killSupervisor(); err != nil {
		return err
	}
	if _, err := lockstep("down", "--name", s.env.name); err != nil {
		return err
	}
	if err := s.before.unchanged(); err != nil {
		return fmt.Errorf("FAIL: after kill -9 of the supervisor, and down: %w", err)
	}
	return nil
}

func skipUnlessPossible(t *testing.T) {
	t.Helper()
	if missing != nil {
		t.Skip("this machine cannot run real nodes")
	}
}

// namespace creates a namespace for a test, with the service account that pods need.
func (e *env) namespace(t *testing.T) string {
	t.Helper()
	ns, err := e.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace's service account", func(ctx context.Context) (bool, error) {
		_, err := e.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	return ns.Name
}

// patience bounds every wait. It is far more than any step takes, so only a step that never happens
// fails.
const patience = 2 * time.Minute

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, condition); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// kill kills a process and waits until it has ended.
func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), nil
	})
}
