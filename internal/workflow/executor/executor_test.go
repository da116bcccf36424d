package executor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor"
)

// containerEnv is set in a process of this test binary that plays a container. The process finds
// its plan in the environment, as in a pod. Children of the test's own process could not be reaped
// separately.
const containerEnv = "LOCKSTEP_TEST_CONTAINER"

// container is the input of the second process besides the plan.
type container struct {
	Message, Dir string
	Task         string // file that receives the report for a WorkflowTaskResult; if it is "", writing one fails
}

func TestMain(m *testing.M) {
	if text := os.Getenv(containerEnv); text != "" {
		os.Exit(asContainer(text))
	}
	os.Exit(m.Run())
}

func asContainer(text string) int {
	var c container
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	os.Unsetenv(containerEnv)
	plan, err := execapi.Decode[execapi.Plan](execapi.PlanEnv, os.Getenv(execapi.PlanEnv))
	if err != nil {
		panic(err)
	}
	return executor.Run(plan, os.Args[1:], executor.Config{Message: c.Message, Dir: c.Dir, Task: func(_ *execapi.Task, r *execapi.Report) error {
		if c.Task == "" {
			return errors.New("no service account token")
		}
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return os.WriteFile(c.Task, data, 0o600)
	}})
}

// running is a container that runs.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	config         container
	stdout, stderr bytes.Buffer
}

// ended is the result of a container.
type ended struct {
	code           int
	message        string
	report         execapi.Report
	stdout, stderr string
}

// begin starts a container in a pod's directory.
func begin(t *testing.T, dir string, plan execapi.Plan, argv ...string) *running {
	t.Helper()
	if plan.Container == "" {
		plan.Container = "main"
	}
	text, err := execapi.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, config: container{Message: filepath.Join(dir, plan.Container+".message"), Dir: dir}}
	if plan.Task != nil && plan.Task.Name != "" {
		r.config.Task = filepath.Join(dir, "task")
	}
	if err := os.WriteFile(r.config.Message, nil, 0o666); err != nil { // as the kubelet does
		t.Fatal(err)
	}
	config, err := json.Marshal(r.config)
	if err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command(exe, argv...)
	r.cmd.Env = append(os.Environ(), containerEnv+"="+string(config), execapi.PlanEnv+"="+text)
	r.cmd.Dir = dir
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	r.cmd.WaitDelay = 5 * time.Second
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

func (r *running) end() ended {
	r.t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		r.t.Fatal(err)
	}
	message, err := os.ReadFile(r.config.Message)
	if err != nil {
		r.t.Fatal(err)
	}
	e := ended{code: r.cmd.ProcessState.ExitCode(), message: string(message), stdout: r.stdout.String(), stderr: r.stderr.String()}
	e.report, _ = execapi.DecodeReport(e.message)
	return e
}

func run(t *testing.T, dir string, plan execapi.Plan, argv ...string) ended {
	t.Helper()
	return begin(t, dir, plan, argv...).end()
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func ptr[T any](v T) *T { return &v }

func TestResult(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		result string
	}{
		"stdout without its last newline":            {"echo one; echo two", "one\ntwo"},
		"only one newline goes":                      {"printf 'a\\n\\n'", "a\n"},
		"stderr is not part of it":                   {"echo out; echo err >&2", "out"},
		"nothing":                                    {":", ""},
		"text of other scripts":                      {"printf 'žluťoučký 漢字'", "žluťoučký 漢字"},
		"bytes that are no text are replaced":        {`printf 'a\377b'`, "a\ufffdb"},
		"what a background process says too late":    {"echo now; (sleep 3; echo late) 2>/dev/null & exit 0", "now"},
		"quotes and control characters":              {`printf '"\t\\'`, "\"\t\\"},
		"the command does not see the plan":          {`echo "[$LOCKSTEP_PLAN]"`, "[]"},
		"of a failed command too, if there is a use": {"echo partly; exit 0", "partly"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := run(t, t.TempDir(), execapi.Plan{Result: true}, sh(c.script)...)
			if e.code != 0 || e.report.Result == nil || *e.report.Result != c.result {
				t.Errorf("exit %d, message %s, stderr %s; want result %q", e.code, e.message, e.stderr, c.result)
			}
		})
	}
}

func TestOutputGoesToTheLogAsWell(t *testing.T) {
	dir := t.TempDir()
	e := run(t, dir, execapi.Plan{Result: true, Logs: filepath.Join(dir, "log")}, sh("echo out; echo err >&2")...)
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if e.stdout != "out\n" || e.stderr != "err\n" || len(log) != len("out\nerr\n") || *e.report.Result != "out" {
		t.Errorf("stdout %q, stderr %q, log %q, message %s", e.stdout, e.stderr, log, e.message)
	}
}

func TestNothingToSayLeavesTheTerminationMessageAlone(t *testing.T) {
	e := run(t, t.TempDir(), execapi.Plan{}, sh("exit 3")...)
	if e.code != 3 || e.message != "" {
		t.Errorf("exit %d, message %q", e.code, e.message)
	}
}

func TestTheCommandsOwnMessageIsKept(t *testing.T) {
	e := run(t, t.TempDir(), execapi.Plan{Result: true}, sh("echo why it failed > main.message; exit 3")...)
	if e.code != 3 || e.report.Message != "why it failed" || e.report.Failed {
		t.Errorf("exit %d, message %q", e.code, e.message)
	}
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		argv []string
		code int
	}{
		"success":                     {sh("exit 0"), 0},
		"failure":                     {sh("exit 42"), 42},
		"64 is the command's own too": {sh("exit 64"), 64},
		"a signal":                    {sh("kill -SEGV $$"), 128 + 11},
		"no such command":             {[]string{"no-such-command"}, 127},
		"no such file":                {[]string{"/no/such/file"}, 127},
		"not executable":              {[]string{dir + "/text"}, 126},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := run(t, t.TempDir(), execapi.Plan{Result: true}, c.argv...)
			if e.code != c.code || e.report.Failed {
				t.Errorf("exit %d, message %s; want %d", e.code, e.message, c.code)
			}
			if c.code == 127 || c.code == 126 {
				if !strings.Contains(e.report.Message, c.argv[0]) || !strings.Contains(e.stderr, c.argv[0]) {
					t.Errorf("message %s, stderr %s: neither names the command", e.message, e.stderr)
				}
			}
		})
	}
}

// TestErrorsAreNotCut checks that a failure of the executor is reported when the report, with its
// artifacts, is larger than a termination message.
func TestErrorsAreNotCut(t *testing.T) {
	for name, most := range map[string]int{"without the artifacts": 600, "with a part of the message": 122} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			plan := execapi.Plan{MaxMessage: most}
			for i := range 20 {
				key := sha256.Sum256([]byte{byte(i)})
				plan.Save = append(plan.Save, execapi.Save{
					Name: fmt.Sprint("a", i), Path: filepath.Join(dir, "file"), To: filepath.Join(dir, "out", fmt.Sprint(i)),
					Location: json.RawMessage(fmt.Sprintf(`{"s3":{"key":"%x"}}`, key)),
				})
			}
			long := filepath.Join(dir, strings.Repeat("x", 200))
			plan.Save = append(plan.Save, execapi.Save{Name: "missing", Path: long, To: filepath.Join(dir, "out", "m")})
			e := run(t, dir, plan, sh("echo > file")...)
			if len(e.message) > most || !e.report.Failed || !strings.HasPrefix(e.report.Message, "output artifact 'm") {
				t.Errorf("%d bytes: %s", len(e.message), e.message)
			}
		})
	}
}

func TestLargeResults(t *testing.T) {
	t.Run("what compresses stays in the termination message", func(t *testing.T) {
		e := run(t, t.TempDir(), execapi.Plan{Result: true}, sh("yes abcdefgh | head -c 100000")...)
		if e.code != 0 || len(e.message) > 4096 || len(*e.report.Result) != 100_000-1 && len(*e.report.Result) != 100_000 {
			t.Errorf("exit %d, message of %d bytes", e.code, len(e.message))
		}
	})
	const noise = "head -c 60000 /dev/urandom | od -An -tx1"
	t.Run("what does not goes into a WorkflowTaskResult", func(t *testing.T) {
		dir := t.TempDir()
		e := run(t, dir, execapi.Plan{Result: true, Task: &execapi.Task{Name: "node"}}, sh(noise)...)
		data, err := os.ReadFile(filepath.Join(dir, "task"))
		if err != nil {
			t.Fatal(err, e.message)
		}
		var r execapi.Report
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		if e.code != 0 || !e.report.Elsewhere || e.report.Result != nil || strings.TrimSuffix(e.stdout, "\n") != *r.Result {
			t.Errorf("exit %d, message %s, result of %d bytes", e.code, e.message, len(*r.Result))
		}
	})
	t.Run("and if that cannot be written it is an error that says so", func(t *testing.T) {
		e := run(t, t.TempDir(), execapi.Plan{Result: true, Task: &execapi.Task{}}, sh(noise)...)
		if e.code != execapi.ExitExecutor || !e.report.Failed || !strings.Contains(e.report.Message, "no service account token") || *e.report.Exit != 0 {
			t.Errorf("exit %d, message %s", e.code, e.message)
		}
	})
	t.Run("the last 256 KiB are kept", func(t *testing.T) {
		e := run(t, t.TempDir(), execapi.Plan{Result: true}, sh("yes x | head -c 3000000; printf end")...)
		if e.code != 0 || len(*e.report.Result) != execapi.MaxResult || !strings.HasSuffix(*e.report.Result, "x\nend") {
			t.Errorf("exit %d, result of %d bytes", e.code, len(*e.report.Result))
		}
	})
	t.Run("binary output passes unchanged", func(t *testing.T) {
		e := run(t, t.TempDir(), execapi.Plan{Result: true, Task: &execapi.Task{Name: "n"}}, sh("head -c 50000 /dev/urandom | tee copy; cmp copy copy")...)
		if e.code != 0 || len(e.stdout) != 50_000 {
			t.Errorf("exit %d, %d bytes of output", e.code, len(e.stdout))
		}
	})
}

func TestMessagesFit(t *testing.T) {
	e := run(t, t.TempDir(), execapi.Plan{Result: true, MaxMessage: 300}, sh("head -c 2000 /dev/urandom | od -An -tx1")...)
	if e.code != execapi.ExitExecutor || len(e.message) > 300 || !e.report.Failed {
		t.Errorf("exit %d, message of %d bytes: %s", e.code, len(e.message), e.message)
	}
}

func TestParameters(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) execapi.Parameter {
		return execapi.Parameter{Name: name, Path: filepath.Join(dir, name)}
	}
	missing := at("missing")
	missing.Default = ptr("instead")
	plan := execapi.Plan{Parameters: []execapi.Parameter{at("a"), at("b"), missing}}
	e := run(t, dir, plan, sh("echo 1 > a; printf '2\\n\\n' > b")...)
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2\n", "missing": "instead"}, e.report.Parameters); e.code != 0 || diff != "" {
		t.Errorf("exit %d, %s", e.code, diff)
	}
	t.Run("one that is missing is an error", func(t *testing.T) {
		e := run(t, dir, execapi.Plan{Parameters: []execapi.Parameter{at("nowhere")}}, sh("true")...)
		if e.code != execapi.ExitExecutor || !e.report.Failed || !strings.Contains(e.report.Message, "'nowhere'") || *e.report.Exit != 0 {
			t.Errorf("exit %d, message %s", e.code, e.message)
		}
	})
	t.Run("but a command that failed keeps its own failure, and what it left", func(t *testing.T) {
		e := run(t, dir, execapi.Plan{Parameters: []execapi.Parameter{at("nowhere"), at("a")}}, sh("exit 5")...)
		if e.code != 5 || e.report.Failed || e.report.Parameters["a"] != "1" {
			t.Errorf("exit %d, message %s", e.code, e.message)
		}
	})
	t.Run("a huge one is refused", func(t *testing.T) {
		e := run(t, dir, execapi.Plan{Parameters: []execapi.Parameter{at("huge")}}, sh("head -c 300000 /dev/zero > huge")...)
		if e.code != execapi.ExitExecutor || !strings.Contains(e.report.Message, "use an artifact") {
			t.Errorf("exit %d, message %s", e.code, e.message)
		}
	})
}

// waitFor waits until a file exists.
func waitFor(t *testing.T, path string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		_, err := os.Stat(path)
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("%s does not appear: %v", path, err)
	}
}

func TestSignalsReachTheCommandAndWhatItStarted(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, execapi.Plan{Result: true}, sh(`
		(trap 'echo child; exit' USR1; touch child; while :; do sleep 0.05; done) &
		trap 'echo parent; wait; exit 7' USR1; touch parent; while :; do sleep 0.05; done`)...)
	waitFor(t, filepath.Join(dir, "child"))
	waitFor(t, filepath.Join(dir, "parent"))
	if err := r.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if e := r.end(); e.code != 7 || !strings.Contains(*e.report.Result, "child") || !strings.Contains(*e.report.Result, "parent") {
		t.Errorf("exit %d, message %s", e.code, e.message)
	}
}

func TestACommandThatIsToEndHasItsGrace(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, execapi.Plan{Result: true, GraceSeconds: 1}, sh(`trap '' TERM; echo started; touch up; while :; do sleep 0.05; done`)...)
	waitFor(t, filepath.Join(dir, "up"))
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := r.end(); e.code != 128+9 || *e.report.Result != "started" {
		t.Errorf("exit %d, message %s", e.code, e.message)
	}
}

func TestACommandThatIsToldToEndIsNotRetried(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, execapi.Plan{Retries: 3}, sh(`echo >> starts; touch up; exec sleep 60 >/dev/null 2>&1`)...)
	waitFor(t, filepath.Join(dir, "up"))
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	starts := func() int { data, _ := os.ReadFile(filepath.Join(dir, "starts")); return len(data) }
	if e := r.end(); e.code != 128+15 || starts() != 1 {
		t.Errorf("exit %d after %d starts", e.code, starts())
	}
}

func TestRetries(t *testing.T) {
	dir := t.TempDir()
	e := run(t, dir, execapi.Plan{Result: true, Retries: 5, RetryDelay: "10ms"}, sh(`echo try; echo >> n; [ $(wc -l < n) = 3 ]`)...)
	if e.code != 0 || *e.report.Result != "try" {
		t.Errorf("exit %d, message %s", e.code, e.message)
	}
	if e := run(t, dir, execapi.Plan{Retries: 2}, sh(`echo >> m; exit 9`)...); e.code != 9 {
		t.Errorf("exit %d", e.code)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "m")); len(data) != 3 {
		t.Errorf("%d attempts", len(data))
	}
}

// TestOrphansAreBuried makes the container the first process of a PID namespace, as it is in a pod.
func TestOrphansAreBuried(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and unshare")
	}
	dir := t.TempDir()
	r := begin(t, dir, execapi.Plan{Result: true}, sh("exit 0")...)
	r.end()
	// Each subshell leaves a child behind that ends at once: without reaping each of them would
	// stay a zombie.
	script := `for i in 1 2 3 4 5 6 7 8; do (sleep 0.02 &); done; sleep 0.4; ps -eo stat | grep -c '^Z' || true`
	cmd := exec.Command(unshare, append([]string{"--pid", "--fork", "--mount-proc", r.cmd.Path}, sh(script)...)...)
	cmd.Env, cmd.Dir = r.cmd.Env, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Skipf("cannot make a PID namespace: %v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "0" {
		t.Errorf("%s zombies", got)
	}
}

func TestContainersComeInTheirOrder(t *testing.T) {
	dir := t.TempDir()
	plan := func(name string, after ...string) execapi.Plan {
		return execapi.Plan{Container: name, Announce: true, After: after}
	}
	c := begin(t, dir, plan("c", "a", "b"), sh("echo c >> log")...)
	b := begin(t, dir, plan("b", "a"), sh("echo b >> log")...)
	a := begin(t, dir, plan("a"), sh("echo a >> log")...)
	for _, r := range []*running{a, b, c} {
		if e := r.end(); e.code != 0 {
			t.Errorf("exit %d: %s", e.code, e.stderr)
		}
	}
	if log, _ := os.ReadFile(filepath.Join(dir, "log")); string(log) != "a\nb\nc\n" {
		t.Errorf("order %q", log)
	}
}

func TestWhatComesAfterAFailureIsOmitted(t *testing.T) {
	for name, end := range map[string]func(*running){
		"that exits": func(r *running) {},
		"that is killed, and can say nothing": func(r *running) {
			waitFor(r.t, filepath.Join(r.config.Dir, "up"))
			if err := r.cmd.Process.Kill(); err != nil {
				r.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := "exit 3"
			if strings.Contains(name, "killed") {
				script = "touch up; exec sleep 5 >/dev/null 2>&1"
			}
			c := begin(t, dir, execapi.Plan{Container: "c", After: []string{"b"}}, sh("touch ran")...)
			b := begin(t, dir, execapi.Plan{Container: "b", After: []string{"a"}, Announce: true}, sh("touch ran")...)
			a := begin(t, dir, execapi.Plan{Container: "a", Announce: true}, sh(script)...)
			end(a)
			a.end()
			for omitted, r := range map[string]*running{"a": b, "b": c} {
				if e := r.end(); e.code != execapi.ExitExecutor || e.report.Omitted != omitted {
					t.Errorf("exit %d, message %s", e.code, e.message)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
				t.Error("ran all the same")
			}
		})
	}
}

func TestAContainerThatWaitsCanBeEnded(t *testing.T) {
	r := begin(t, t.TempDir(), execapi.Plan{After: []string{"never"}}, sh("true")...)
	ended := make(chan error, 1)
	go func() { ended <- r.cmd.Wait() }()
	again := time.NewTicker(10 * time.Millisecond) // before or after the command starts
	defer again.Stop()
	for patience := time.After(time.Minute); ; {
		select {
		case <-ended:
			return
		case <-again.C:
			_ = r.cmd.Process.Signal(syscall.SIGTERM)
		case <-patience:
			t.Fatal("still waits")
		}
	}
}

func TestSaves(t *testing.T) {
	dir := t.TempDir()
	location := json.RawMessage(`{"raw":{"data":"x"}}`)
	plan := execapi.Plan{Save: []execapi.Save{
		{Name: "tree", Path: filepath.Join(dir, "tree"), To: filepath.Join(dir, "out", "tree.tgz"), Location: location},
		{Name: "plain", Path: filepath.Join(dir, "file"), To: filepath.Join(dir, "out", "deep", "plain"), Archive: execapi.ArchiveNone},
		{Name: "maybe", Path: filepath.Join(dir, "none"), To: filepath.Join(dir, "out", "none"), Optional: true},
	}}
	e := run(t, dir, plan, sh("mkdir -p tree/a; echo 1 > tree/a/b; echo text > file")...)
	if diff := cmp.Diff([]execapi.Saved{{Name: "tree", Location: location}}, e.report.Artifacts); e.code != 0 || diff != "" {
		t.Fatalf("exit %d, %s: %s", e.code, e.message, diff)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "out", "deep", "plain")); string(text) != "text\n" {
		t.Errorf("plain is %q", text)
	}
	if out, err := exec.Command("tar", "-xzOf", filepath.Join(dir, "out", "tree.tgz"), "tree/a/b").CombinedOutput(); string(out) != "1\n" {
		t.Errorf("tree/a/b is %q, %v", out, err)
	}
	plan.Save = plan.Save[2:]
	plan.Save[0].Optional = false
	if e := run(t, dir, plan, sh("true")...); e.code != execapi.ExitExecutor || !strings.Contains(e.report.Message, "'maybe'") {
		t.Errorf("exit %d, message %s", e.code, e.message)
	}
}

func TestInstall(t *testing.T) {
	to := filepath.Join(t.TempDir(), "program")
	for range 2 { // a restarted init container installs again
		if err := executor.Install("/proc/self/exe", to); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(to, "-test.run", "^$").CombinedOutput(); err != nil {
		t.Error(err, string(out))
	}
}

func TestProgressIsToldWhileTheCommandRuns(t *testing.T) {
	t.Setenv("ARGO_PROGRESS_FILE_TICK_DURATION", "1ms")
	t.Setenv("ARGO_PROGRESS_PATCH_TICK_DURATION", "1ms")
	dir := t.TempDir()
	plan := execapi.Plan{Progress: filepath.Join(dir, "progress"), Task: &execapi.Task{Name: "node"}}
	// The command ends on a signal, or after a time longer than any machine needs.
	e := run(t, dir, plan, sh(`echo 1/4 > progress; i=0; while test ! -f task && test $i -lt 300; do sleep 0.1; i=$((i+1)); done; echo 2/4 >> progress; echo 4/4 >> progress`)...)
	if e.code != 0 || e.report.Progress != "4/4" {
		t.Errorf("exit code %d, %+v %s", e.code, e.report, e.stderr)
	}
	var told execapi.Report
	if data, err := os.ReadFile(filepath.Join(dir, "task")); err != nil {
		t.Error(err)
	} else if err := json.Unmarshal(data, &told); err != nil || !strings.HasSuffix(told.Progress, "/4") || told.Result != nil {
		t.Errorf("told %s, %v", data, err)
	}
}

func TestProgressThatCannotBeTold(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"no file":               {"true", ""},
		"a directory":           {"mkdir progress", ""},
		"the last line counts":  {"printf '1/2\\n2/2\\n' > progress", "2/2"},
		"the end of a long one": {"yes 1/3 | head -n 10000 > progress; echo 3/3 >> progress", "3/3"},
		"a link out of it":      {"ln -s /dev/zero progress", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if e := run(t, dir, execapi.Plan{Progress: filepath.Join(dir, "progress")}, sh(c.script)...); e.code != 0 || e.report.Progress != c.want {
				t.Errorf("exit code %d, progress %q %s", e.code, e.report.Progress, e.stderr)
			}
		})
	}
}
