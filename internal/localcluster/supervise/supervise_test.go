package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// TestMain lets the test binary act as lockstep's supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == supervise.Command {
		if err := supervise.Run(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// isolate gives a test its own state directory.
func isolate(t *testing.T) (stateHome string) {
	t.Helper()
	stateHome = t.TempDir()
	t.Setenv("XDG_STATE_HOME", stateHome)
	return stateHome
}

// spec returns the smallest cluster: etcd, kube-apiserver and KWOK.
func spec(t *testing.T, name string) supervise.Spec {
	t.Helper()
	kube, err := localcluster.FindKube()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return supervise.Spec{
		Name: name, Nodes: localcluster.Nodes{Count: 1}, WithoutManager: true, WithoutControllerManager: true, NotDurable: true, Restart: true,
		KubeBinary: kube, Executable: exe,
	}
}

func up(t *testing.T, spec supervise.Spec) *supervise.State {
	t.Helper()
	var events []string
	_, err := supervise.Up(t.Context(), context.Background(), spec, func(e localcluster.Event) {
		events = append(events, fmt.Sprint(e.Component, " ", e.Kind, " ", e.Message))
	})
	if err != nil {
		t.Fatalf("%v\nevents:\n%s", err, strings.Join(events, "\n"))
	}
	t.Cleanup(func() {
		if err := supervise.Down(context.Background(), spec.Name); err != nil && !errors.Is(err, supervise.ErrNoCluster) {
			t.Error(err)
		}
	})
	return get(t, spec.Name)
}

func get(t *testing.T, name string) *supervise.State {
	t.Helper()
	state, err := supervise.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// checkGone checks that nothing of a cluster is left: no processes, ports or files.
func checkGone(t *testing.T, stateHome string, state *supervise.State) {
	t.Helper()
	if localcluster.Alive(state.Supervisor, state.SupervisorTicks) {
		t.Errorf("the supervisor %d is alive", state.Supervisor)
	}
	for _, c := range state.Components {
		if c.PID == 0 || localcluster.Alive(c.PID, c.StartTicks) {
			t.Errorf("%s, process %d, is alive", c.Name, c.PID)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.Port))
		if err != nil {
			t.Errorf("the port of %s is in use: %v", c.Name, err)
			continue
		}
		l.Close()
	}
	err := filepath.WalkDir(stateHome, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || filepath.Base(path) == state.Name) {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUpAndDownTwiceLeavesNothing(t *testing.T) {
	home := isolate(t)
	for range 2 {
		state := up(t, spec(t, "twice"))
		if state.Phase != supervise.PhaseReady || len(state.Components) != 3 {
			t.Fatalf("phase %s, components %+v", state.Phase, state.Components)
		}
		for _, c := range state.Components {
			if !c.Healthy || c.RSSBytes == 0 || c.Port == 0 {
				t.Errorf("component %+v", c)
			}
		}
		if _, err := supervise.Up(t.Context(), context.Background(), spec(t, "twice"), func(localcluster.Event) {}); err == nil || !strings.Contains(err.Error(), "running already") {
			t.Errorf("a second up: %v", err)
		}
		if err := supervise.Down(t.Context(), "twice"); err != nil {
			t.Fatal(err)
		}
		checkGone(t, home, state)
		if err := supervise.Down(t.Context(), "twice"); !errors.Is(err, supervise.ErrNoCluster) {
			t.Errorf("a second down: %v", err)
		}
	}
}

func TestKilledComponentsAreStartedAgainAndReported(t *testing.T) {
	isolate(t)
	state := up(t, spec(t, "restart"))
	for _, c := range state.Components {
		if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, false, func(context.Context) (bool, error) {
			state = get(t, "restart")
			if state.Phase != supervise.PhaseReady {
				return false, nil
			}
			for _, now := range state.Components {
				if now.Name == c.Name {
					return now.Restarts == 1 && now.PID != c.PID && now.LastExit == "killed by SIGKILL", nil
				}
			}
			return false, nil
		})
		if err != nil {
			t.Fatalf("%s: %v; state %+v", c.Name, err, state)
		}
		if n := len(state.Deaths); n == 0 || state.Deaths[n-1].Component != c.Name {
			t.Errorf("the death of %s is not recorded: %+v", c.Name, state.Deaths)
		}
	}
}

func TestDownAfterTheSupervisorWasKilled(t *testing.T) {
	home := isolate(t)
	state := up(t, spec(t, "orphan"))
	if err := syscall.Kill(state.Supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return get(t, "orphan").Phase == supervise.PhaseFailed, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := supervise.Down(t.Context(), "orphan"); err != nil {
		t.Fatal(err)
	}
	checkGone(t, home, state)
}

// checkPrivate checks that only the user can access the files of a cluster and its kubeconfigs.
func checkPrivate(t *testing.T, home string, s supervise.Spec) {
	t.Helper()
	check := func(path string) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
	}
	check(s.Kubeconfig)
	check(s.MergeInto)
	err := filepath.WalkDir(filepath.Join(home, "lockstep", "clusters", s.Name), func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			check(path)
		}
		return nil // etcd removes files as it goes
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkTakenBack checks that no kubeconfig contains the cluster any more.
func checkTakenBack(t *testing.T, s supervise.Spec) {
	t.Helper()
	if _, err := os.Stat(s.Kubeconfig); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the written kubeconfig after down: %v", err)
	}
	kc, err := clientcmd.LoadFromFile(s.MergeInto)
	if err != nil {
		t.Fatal(err)
	}
	if len(kc.Contexts)+len(kc.Clusters)+len(kc.AuthInfos) != 0 {
		t.Errorf("the merged kubeconfig after down: %+v", kc)
	}
}

func TestTwoClustersSideBySide(t *testing.T) {
	home := isolate(t)
	s := spec(t, "second")
	s.Kubeconfig = filepath.Join(t.TempDir(), "dir", "kubeconfig")
	s.MergeInto = filepath.Join(t.TempDir(), "config")
	first, second := up(t, spec(t, "first")), up(t, s)
	checkPrivate(t, home, s)
	if err := supervise.Down(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if localcluster.Alive(first.Supervisor, first.SupervisorTicks) {
		t.Error("the first cluster's supervisor is alive")
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the second cluster after the first's end: %v", err)
	}
	if err := supervise.Down(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	checkGone(t, home, second)
	checkTakenBack(t, s)
}

func TestInterruptedUpLeavesNothing(t *testing.T) {
	home := isolate(t)
	for name, force := range map[string]bool{"stopped": false, "killed": true} {
		ctx, cancel := context.WithCancel(t.Context())
		kill, killNow := context.WithCancel(context.Background())
		_, err := supervise.Up(ctx, kill, spec(t, name), func(e localcluster.Event) {
			if e.Component == localcluster.APIServer && e.Kind == localcluster.EventStarting {
				cancel()
				if force {
					killNow()
				}
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		checkGone(t, home, &supervise.State{Name: name})
		cancel()
		killNow()
	}
}

func TestAComponentThatCannotStartIsReportedWithItsLog(t *testing.T) {
	home := isolate(t)
	s := spec(t, "broken")
	s.ExtraArgs = map[localcluster.Component][]string{localcluster.APIServer: {"--no-such-flag"}}
	_, err := supervise.Up(t.Context(), context.Background(), s, func(localcluster.Event) {})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver exited with code 1") || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("error: %v", err)
	}
	checkGone(t, home, &supervise.State{Name: "broken"})
}

// TestOneOfSeveralUpsWins starts a cluster several times at once. The losers leave the winner's
// cluster alone.
func TestOneOfSeveralUpsWins(t *testing.T) {
	home := isolate(t)
	s := spec(t, "race")
	failed := make([]error, 3)
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() {
			_, failed[i] = supervise.Up(context.Background(), context.Background(), s, func(localcluster.Event) {})
		})
	}
	all.Wait()
	won := 0
	for _, err := range failed {
		if err == nil {
			won++
		} else if !strings.Contains(err.Error(), "local cluster race is") {
			t.Errorf("a loser: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d ups succeeded: %v", won, len(failed), failed)
	}
	state := get(t, "race")
	if state.Phase != supervise.PhaseReady {
		t.Errorf("the winner's cluster is %s", state.Phase)
	}
	// Several downs end it once.
	downs := make([]error, 3)
	for i := range downs {
		all.Go(func() { downs[i] = supervise.Down(context.Background(), "race") })
	}
	all.Wait()
	for _, err := range downs {
		if err != nil && !errors.Is(err, supervise.ErrNoCluster) {
			t.Errorf("down: %v", err)
		}
	}
	checkGone(t, home, state)
}
