package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/race"
)

func TestMain(m *testing.M) {
	Main(testTable)
	if os.Getenv("SANDBOX_TEST_PARENT") != "" {
		parent()
	}
	os.Exit(m.Run())
}

var hoard [][]byte

// grown returns n bytes, all touched.
func grown(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	return b
}

func recurse(n int, pad [64]int) int {
	pad[n%64] = n
	//lint:ignore SA5007 that is what it is for
	return recurse(n+1, pad) + pad[(n*7)%64] //nolint:staticcheck // likewise
}

var testTable = Table{
	"echo": func(_ context.Context, in []byte) ([]byte, error) { return in, nil },
	"fail": func(_ context.Context, in []byte) ([]byte, error) { return nil, errors.New(string(in)) },
	"pid":  func(context.Context, []byte) ([]byte, error) { return []byte(strconv.Itoa(os.Getpid())), nil },
	"panic": func(_ context.Context, in []byte) ([]byte, error) {
		panic(string(in))
	},
	"fatal": func(context.Context, []byte) ([]byte, error) {
		var m sync.Mutex
		m.Unlock() // cannot be recovered from
		return nil, nil
	},
	"exit": func(context.Context, []byte) ([]byte, error) { os.Exit(0); return nil, nil },
	"grow": func(_ context.Context, in []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(in))
		return grown(n)[:1], err
	},
	"grow slowly": func(context.Context, []byte) ([]byte, error) {
		var all [][]byte
		for {
			//lint:ignore SA4010 that is what it is for
			all = append(all, grown(1<<20)) //nolint:staticcheck // likewise
		}
	},
	"hoard": func(_ context.Context, in []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(in))
		hoard = append(hoard, grown(n))
		return nil, err
	},
	"spin": func(context.Context, []byte) ([]byte, error) {
		for i := 0; ; i++ {
			if i < 0 {
				return nil, nil
			}
		}
	},
	"recurse": func(context.Context, []byte) ([]byte, error) { return fmt.Append(nil, recurse(0, [64]int{})), nil },
	"output": func(_ context.Context, in []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(in))
		return make([]byte, n), err
	},
	"escape": func(context.Context, []byte) ([]byte, error) {
		got := map[string]string{}
		try := func(what string, err error) { got[what] = fmt.Sprint(err) }
		_, err := os.ReadFile("/proc/self/status")
		try("read a file", err)
		try("write a file", os.WriteFile("/tmp/lockstep-sandbox-escape", nil, 0o600))
		_, err = os.Stat("/etc/passwd")
		try("look at a file", err)
		try("make a folder", os.Mkdir("/tmp/lockstep-sandbox-escape.d", 0o700))
		try("remove a file", os.Remove("/tmp/lockstep-sandbox-there-is-none"))
		_, err = net.Dial("tcp", "127.0.0.1:1")
		try("connect", err)
		_, err = net.Listen("tcp", "127.0.0.1:0")
		try("listen", err)
		_, err = net.Listen("unix", "@lockstep-sandbox-escape")
		try("listen on a Unix socket", err)
		try("start a program", exec.Command("/bin/true").Run())
		try("signal the parent", syscall.Kill(os.Getppid(), syscall.SIGURG))
		_, err = syscall.PtraceGetEventMsg(os.Getppid())
		try("trace the parent", err)
		got["environment"] = strings.Join(os.Environ(), " ")
		return json.Marshal(got)
	},
}

// parent is a program with a pool that prints the pid of a busy child and waits.
func parent() {
	p, err := New(Config{})
	if err != nil {
		panic(err)
	}
	pid, err := p.Do(context.Background(), "ns", "pid", nil)
	if err != nil {
		panic(err)
	}
	go func() { _, _ = p.Do(context.Background(), "ns", "spin", nil) }()
	fmt.Println(string(pid))
	select {}
}

func newPool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (p *Pool) childCount() int {
	n, _ := p.size()
	return n
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 30 s", what)
		}
	}
}

func TestAnEvaluatorAnswers(t *testing.T) {
	p := newPool(t, Config{})
	for _, in := range []string{"", "hello", strings.Repeat("x", 3<<20)} {
		got, err := p.Do(t.Context(), "ns", "echo", []byte(in))
		if err != nil || string(got) != in {
			t.Fatalf("%d bytes of %d, %v", len(got), len(in), err)
		}
	}
	if n := p.childCount(); n != 1 {
		t.Errorf("%d children for requests one after the other", n)
	}
	_, err := p.Do(t.Context(), "ns", "fail", []byte("no such field"))
	var failed *Failed
	if !errors.As(err, &failed) || err.Error() != "no such field" || !Permanent(err) {
		t.Errorf("%v", err)
	}
	if _, err := p.Do(t.Context(), "ns", "nothing", nil); !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
}

// TestALimitFailsItsOneRequest makes each request exceed a limit ten times or more while other
// tenants continue.
func TestALimitFailsItsOneRequest(t *testing.T) {
	limits := Limits{MemoryBytes: 64 << 20, CPU: 500 * time.Millisecond, StackBytes: 8 << 20, OutputBytesMax: 1 << 20, RequestBytesMax: 4 << 20}
	p := newPool(t, Config{Limits: limits})
	for _, c := range []struct{ evaluator, request, want string }{
		{"grow", strconv.Itoa(640 << 20), "evaluation took more than 64 MiB of memory"},
		{"grow", strconv.Itoa(1 << 40), "evaluation took more than 64 MiB of memory"},
		{"grow slowly", "", "evaluation took more than 64 MiB of memory"},
		{"spin", "", "evaluation took more than 500ms of CPU"},
		{"recurse", "", "evaluation took more than 8 MiB of stack"},
		{"output", strconv.Itoa(10 << 20), "evaluation made an output over 1 MiB"},
		{"echo", strings.Repeat("x", 40<<20), "what is to be evaluated is over 4 MiB"},
		{"panic", "index out of range", "evaluation broke down: index out of range"},
		{"fatal", "", "evaluation broke down: fatal error: sync: unlock of unlocked mutex"},
		{"exit", "", "evaluation broke down: exit status 0"},
	} {
		t.Run(fmt.Sprintf("%s %.12s", c.evaluator, c.request), func(t *testing.T) {
			if strings.HasPrefix(c.evaluator, "grow") && race.Enabled {
				t.Skip("the race detector takes memory of its own, without limit")
			}
			ctx, stop := context.WithCancel(t.Context())
			var canaries sync.WaitGroup
			var sung [2]int
			for i := range sung {
				canaries.Go(func() {
					for ctx.Err() == nil {
						if got, err := p.Do(context.WithoutCancel(ctx), "canary-"+strconv.Itoa(i), "echo", []byte("tweet")); err != nil || string(got) != "tweet" {
							t.Errorf("another tenant's request: %q, %v", got, err)
							return
						}
						sung[i]++
					}
				})
			}
			_, err := p.Do(t.Context(), "hostile", c.evaluator, []byte(c.request))
			stop()
			canaries.Wait()
			if err == nil || err.Error() != c.want || !Permanent(err) || Temporary(err) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			t.Logf("%v; other tenants: %v requests meanwhile", err, sung)
		})
	}
}

func TestAChildReachesNothing(t *testing.T) {
	p := newPool(t, Config{})
	data, err := p.Do(t.Context(), "ns", "escape", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for what, err := range got {
		switch {
		case what == "environment":
			if err != "" {
				t.Errorf("its environment is %q", err)
			}
		case !strings.Contains(err, "operation not permitted") && !strings.Contains(err, "too many open files") && !strings.Contains(err, "permission denied"):
			t.Errorf("%s: %s", what, err)
		}
	}
	if len(got) < 10 {
		t.Errorf("only %v", got)
	}
}

// TestARequestIsNotBlamedForOthers checks that memory left in a child by earlier requests is not
// counted against a later one.
func TestARequestIsNotBlamedForOthers(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own, without limit")
	}
	p := newPool(t, Config{Limits: Limits{MemoryBytes: 64 << 20}, Slots: 2, SlowSlots: -1})
	for i := range 4 {
		if _, err := p.Do(t.Context(), "a", "hoard", []byte(strconv.Itoa(28<<20))); err != nil {
			t.Fatal(i, err)
		}
		if _, err := p.Do(t.Context(), "b", "grow", []byte(strconv.Itoa(56<<20))); err != nil {
			t.Fatal(i, err)
		}
	}
}

// TestATenantsSlowRequestsLeaveRoom checks that a tenant's slow requests leave slots for other
// tenants' requests, which end while most of the slow requests have not begun.
func TestATenantsSlowRequestsLeaveRoom(t *testing.T) {
	p := newPool(t, Config{Slots: 2, SlowSlots: 1, Limits: Limits{CPU: 300 * time.Millisecond}})
	ctx, stop := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	var mu sync.Mutex
	ended := 0
	for range 20 {
		slow.Go(func() {
			_, _ = p.Do(ctx, "hostile", "spin", nil)
			mu.Lock()
			defer mu.Unlock()
			ended++
		})
	}
	eventually(t, "the slow ones have begun", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return ended > 0
	})
	for range 20 {
		if _, err := p.Do(t.Context(), "canary", "echo", nil); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	if ended > 10 {
		t.Errorf("%d of 20 slow requests ended before 20 of another tenant", ended)
	}
	mu.Unlock()
	if n := p.childCount(); n > 3 {
		t.Errorf("%d children", n)
	}
	stop()
	slow.Wait()
	p.slots.mu.Lock()
	defer p.slots.mu.Unlock()
	for name, t1 := range p.slots.tenants {
		if len(t1.running) != 0 || t1.slow != 0 || len(t1.waiting) != 0 {
			t.Errorf("%s: %+v", name, *t1)
		}
	}
	if p.slots.running != 0 || p.slots.slow != 0 {
		t.Errorf("%d running, %d slow", p.slots.running, p.slots.slow)
	}
}

func TestIdleChildrenEnd(t *testing.T) {
	p := newPool(t, Config{})
	p.idleMax = 10 * time.Millisecond
	if _, err := p.Do(t.Context(), "ns", "echo", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child has ended", func() bool { return p.childCount() == 0 })
	if _, err := p.Do(t.Context(), "ns", "echo", nil); err != nil {
		t.Fatal(err)
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	p := newPool(t, Config{})
	result := make(chan error)
	for range 8 {
		go func() {
			_, err := p.Do(t.Context(), "ns", "spin", nil)
			result <- err
		}()
	}
	eventually(t, "it runs", func() bool { return p.childCount() > 0 })
	p.Close()
	for range 8 {
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if _, err := p.Do(t.Context(), "ns", "echo", nil); !errors.Is(err, ErrClosed) || !Temporary(err) {
		t.Errorf("%v", err)
	}
	eventually(t, "no child is left", func() bool { return p.childCount() == 0 })
}

func TestACallerThatGoesEndsItsRequest(t *testing.T) {
	p := newPool(t, Config{})
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := p.Do(ctx, "ns", "spin", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	eventually(t, "no child is left", func() bool { return p.childCount() == 0 })
}

func TestChildrenEndWithTheirParent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SANDBOX_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "the child has ended", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

func TestAProgramWithoutMainHasNoPool(t *testing.T) {
	mainCalled.Store(false)
	defer mainCalled.Store(true)
	if p, err := New(Config{}); err == nil {
		p.Close()
		t.Error("it has a pool, whose children would do what the program does")
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	p, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	request := make([]byte, 8<<10)
	for b.Loop() {
		if _, err := p.Do(b.Context(), "ns", "echo", request); err != nil {
			b.Fatal(err)
		}
	}
}
