package panics_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/panics"
)

type name string

func (n name) String() string { return string(n) }

func guard(t *testing.T, log *bytes.Buffer) (*panics.Guard, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	g, err := panics.New(slog.New(slog.NewTextHandler(log, nil)), registry)
	if err != nil {
		t.Fatal(err)
	}
	return g, registry
}

//go:noinline
func fails(pod *corev1.Pod) string { return pod.Spec.NodeName }

func TestAPanicIsLoggedCountedAndReturned(t *testing.T) {
	var log bytes.Buffer
	g, registry := guard(t, &log)
	if p := g.Try("jobs", name("a/b"), func() {}); p != nil {
		t.Fatalf("without a panic: %v", p)
	}
	p := g.Try("jobs", name("a/b"), func() { fails(nil) })
	if p == nil {
		t.Fatal("nothing was caught")
	}
	want := "the manager failed in internal/panics_test.fails: runtime error: invalid memory address or nil pointer dereference"
	if p.Error() != want {
		t.Errorf("got  %s\nwant %s", p, want)
	}
	for _, s := range []string{"object=a/b", "part=jobs", "panics_test.go"} {
		if !strings.Contains(log.String(), s) {
			t.Errorf("the log does not have %q: %s", s, &log)
		}
	}
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP lockstep_panics_total Panics that one object caused and that the process recovered from, by the part of the process.
# TYPE lockstep_panics_total counter
lockstep_panics_total{part="jobs"} 1
`))
	if err != nil {
		t.Error(err)
	}
}

// TestValuesOfPanicsStayInside checks that the value of a panic is not shown: it may come from an
// object that the reader of a status, or of the log, may not read.
func TestValuesOfPanicsStayInside(t *testing.T) {
	for want, value := range map[string]any{
		"string": "the password is secret", "*fmt.wrapError": fmt.Errorf("the password is secret: %w", io.EOF), "[]uint8": []byte("the password is secret"),
	} {
		var log bytes.Buffer
		g, _ := guard(t, &log)
		p := g.Try("jobs", name("a/b"), func() { panic(value) })
		if p == nil || strings.Contains(p.Error(), "secret") {
			t.Errorf("got %v", p)
		}
		for _, s := range []string{"object=a/b", "panics_test.go", "type=" + want} {
			if !strings.Contains(log.String(), s) {
				t.Errorf("the log does not have %q: %s", s, &log)
			}
		}
		if strings.Contains(log.String(), "secret") {
			t.Errorf("the log has the value: %s", &log)
		}
	}
}

// TestAProcessThatEndsSaysNoValue runs itself again and checks that the output of a process ended
// by a panic contains the stack and the type of the value, but not the value.
func TestAProcessThatEndsSaysNoValue(t *testing.T) {
	if os.Getenv("CONTAIN_TEST_PANICS") != "" {
		panics.SetLockedMax(t, 0)
		g, _ := guard(t, &bytes.Buffer{})
		g.Try("jobs", name("a/b"), func() {
			var mu sync.Mutex
			p := g.Try("jobs", name("c/d"), func() { mu.Lock(); panic("the password is secret") })
			p.Unlocked(&mu)
		})
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", t.Name())
	cmd.Env = append(os.Environ(), "CONTAIN_TEST_PANICS=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("it goes on")
	}
	for _, s := range []string{"so the process ends", "a panic (string)", "panics_test.go"} {
		if !strings.Contains(string(out), s) {
			t.Errorf("it does not say %q: %s", s, out)
		}
	}
	if strings.Contains(string(out), "secret") {
		t.Errorf("it says the value: %s", out)
	}
}

func TestWithoutAGuardPanicsGoOn(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was caught")
		}
	}()
	var g *panics.Guard
	g.Try("jobs", name("a/b"), func() { fails(nil) })
}

func TestALockedMutexEndsTheProcess(t *testing.T) {
	panics.SetLockedMax(t, 0)
	g, _ := guard(t, &bytes.Buffer{})
	var mu, free sync.Mutex
	p := g.Try("jobs", name("a/b"), func() { mu.Lock(); fails(nil) })
	p.Unlocked(&free)
	defer func() {
		if v := recover(); !strings.Contains(fmt.Sprint(v), "so the process ends") {
			t.Errorf("recovered %v", v)
		}
	}()
	// An outer Try does not recover either.
	g.Try("jobs", name("a/b"), func() { p.Unlocked(&free, &mu) })
	t.Error("it goes on")
}
