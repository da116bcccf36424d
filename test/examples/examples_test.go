package examples

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// TestMain runs the manager if the test binary is called as "TESTBINARY manager ...", and else the
// tests.
func TestMain(m *testing.M) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	options = []localtest.Option{localtest.WithControllerManager(), localtest.WithApplications(),
		// as in 'lockstep up'
		localtest.WithManager(self, "manager", "--scheduler-name=lockstep,volcano,default-scheduler"),
		localtest.WithNodes(localcluster.Nodes{Count: 10, Topology: machines.AMD256NPS4.Name})}
	managertest.Main(m, options...)
}

// options start a cluster with a manager.
var options []localtest.Option

// lockstep runs a command line against the shared cluster and returns its exit code and output.
func lockstep(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	return lockstepAt(localtest.Shared(t), args...)
}

func lockstepAt(c *localcluster.Cluster, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = cli.Run(append(args, "--kubeconfig", c.Kubeconfig()), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func example(name string) string { return filepath.Join("../../examples/batch", name) }

func TestTheExamplesSucceed(t *testing.T) {
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m",
		"-f", example("hello.yaml"), "-f", example("gang.yaml"), "-f", example("queues.yaml"), "-f", example("mpi.yaml"),
		"-f", example("priorities.yaml"), "-f", example("waiting.yaml"),
		"-f", example("nodegroups.yaml"), "-f", example("zones.yaml"), "-f", example("numa.yaml"),
		"-f", example("hierarchy.yaml"), "-f", example("partitions.yaml"), "-f", example("pytorch.yaml"),
		"-f", example("fairshare.yaml"), "-f", example("tasks.yaml"))
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	for _, job := range []string{"hello", "training", "sweep", "report", "stencil", "background", "release", "day", "quarter", "evaluation", "nightly",
		"near-memory", "crawl", "simulation", "pipelines", "digits", "parameters", "homework-1", "homework-2", "homework-3"} {
		if !strings.Contains(errOut, "job.batch.volcano.sh/"+job+": Completed") {
			t.Errorf("%s did not complete:\n%s", job, errOut)
		}
	}
	_, out, _ = lockstep(t, "get", "jobs")
	if !strings.HasPrefix(out, "NAME") || strings.Count(out, "Completed") < 5 {
		t.Errorf("get jobs:\n%s", out)
	}
	_, out, _ = lockstep(t, "get", "queue", "students", "-o", "wide")
	for _, want := range []string{"JOBS", "MAXJOBS", "2", "USEDCPU", "SHAREDBY", "namespace"} {
		if !strings.Contains(out, want) {
			t.Errorf("get queue -o wide lacks %q:\n%s", want, out)
		}
	}
	_, out, _ = lockstep(t, "get", "queue", "adhoc", "-o", "yaml")
	if !strings.Contains(out, "capability:") || !strings.Contains(out, "kind: Queue") {
		t.Errorf("get queue -o yaml:\n%s", out)
	}
}

// TestTheDevicesExampleSucceeds publishes two devices as a driver does.
func TestTheDevicesExampleSucceeds(t *testing.T) {
	slices := filepath.Join(t.TempDir(), "slices.yaml")
	err := os.WriteFile(slices, []byte(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus-of-node-0001}
spec:
  driver: gpu.example.com
  nodeName: node-0001
  pool: {name: node-0001, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}, {name: gpu-1}]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := lockstep(t, "submit", "-f", slices); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m", "-f", example("devices.yaml"))
	if code != 0 || !strings.Contains(errOut, "job.batch.volcano.sh/devices: Completed") {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
}

// TestTheVolumesExampleSucceeds has two volumes that its claims can use.
func TestTheVolumesExampleSucceeds(t *testing.T) {
	volumes := filepath.Join(t.TempDir(), "volumes.yaml")
	const volume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  hostPath: {path: /tmp}
`
	if err := os.WriteFile(volumes, fmt.Appendf(nil, volume+"---"+volume, "examples-1", "examples-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m", "-f", volumes, "-f", example("volumes.yaml"))
	if code != 0 || !strings.Contains(errOut, "job.batch.volcano.sh/convert: Completed") {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
}

// TestTheOwnersExampleStartsAsAGang checks that the Deployment's pods have a PodGroup in the queue of their namespace.
func TestTheOwnersExampleStartsAsAGang(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("owners.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	localtest.Eventually(t, "the group runs", func() error {
		_, out, errOut := lockstep(t, "get", "podgroups", "-n", "team-a", "-o", "yaml")
		for _, want := range []string{"minMember: 3", "phase: Running", "running: 3"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("%s%s", out, errOut)
			}
		}
		_, out, errOut = lockstep(t, "get", "queue", "team-a", "-o", "jsonpath={.status.allocated.cpu}")
		if out != "750m" {
			return fmt.Errorf("the queue has %s%s", out, errOut)
		}
		return nil
	})
}

func TestTheSchedulerConfigurationIsAccepted(t *testing.T) {
	code, out, errOut := lockstep(t, "migrate", "check", "-f", example("scheduler.yaml"))
	if code != 0 || strings.Contains(out, "missing") && !strings.Contains(out, "0 have parts that are missing") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	data, err := os.ReadFile(example("scheduler.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	settings, findings, err := config.Parse(data)
	if err != nil || settings.OverdueAfter != 20*time.Minute || settings.UsageHalfLife != 7*24*time.Hour {
		t.Errorf("%+v, %v, %v", settings, findings, err)
	}
}

// TestEachBatchExampleIsRun checks that a test names each example.
func TestEachBatchExampleIsRun(t *testing.T) {
	source, err := os.ReadFile("examples_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(example("*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		if !bytes.Contains(source, fmt.Appendf(nil, "example(%q)", filepath.Base(file))) {
			t.Errorf("no test runs %s", file)
		}
	}
}

func TestTheTopologyExampleSucceeds(t *testing.T) {
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m", "-f", example("topology.yaml"))
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	for _, job := range []string{"ring", "loose"} {
		if !strings.Contains(errOut, "job.batch.volcano.sh/"+job+": Completed") {
			t.Errorf("%s did not complete:\n%s", job, errOut)
		}
	}
	localtest.Eventually(t, "the row has 10 nodes", func() error {
		if _, out, errOut := lockstep(t, "get", "hypernode", "row-1", "-o", "yaml"); !strings.Contains(out, "nodeCount: 10") {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
	_, out, _ = lockstep(t, "get", "pods", "-l", "volcano.sh/job-name=ring", "-o", "jsonpath={.items[*].spec.nodeName}")
	racks := map[bool]bool{}
	for node := range strings.FieldsSeq(out) {
		racks[node < "node-0005"] = true
	}
	if len(racks) != 1 {
		t.Errorf("the ring's pods are on %s", out)
	}
}

func TestTheSubGroupsStart(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("subgroups.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	localtest.Eventually(t, "both replicas run", func() error {
		_, out, errOut := lockstep(t, "get", "podgroup", "model", "-o", "yaml")
		if !strings.Contains(out, "phase: Running") || !strings.Contains(out, "running: 6") {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
}

func TestTheJobFlowSucceeds(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("jobflow.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	localtest.Eventually(t, "the flow succeeds", func() error {
		if _, out, errOut := lockstep(t, "get", "jobflow", "release"); !strings.Contains(out, "Succeed") {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
	_, out, _ := lockstep(t, "get", "jobs")
	for _, job := range []string{"release-serve", "release-evaluate", "release-publish"} {
		if !strings.Contains(out, job) {
			t.Errorf("there is no Job %s:\n%s", job, out)
		}
	}
	if _, out, _ := lockstep(t, "get", "jt", "serve", "-o", "yaml"); !strings.Contains(out, "release-serve") {
		t.Errorf("the template does not list its Job:\n%s", out)
	}
}

func TestTheCronJobRuns(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("cronjob.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	localtest.Eventually(t, "a Job of it completes", func() error {
		if _, out, errOut := lockstep(t, "get", "cronjob", "cleanup", "-o", "yaml"); !strings.Contains(out, "lastSuccessfulTime") {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
	if _, out, _ := lockstep(t, "get", "cronjobs"); !strings.Contains(out, "@every 20s") || !strings.Contains(out, "Europe/Berlin") {
		t.Errorf("get cronjobs:\n%s", out)
	}
}

func TestThePinnedExampleSucceeds(t *testing.T) {
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m", "-f", "../../examples/cpu/pinned.yaml")
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	for _, job := range []string{"solver", "pi", "quiet"} {
		if !strings.Contains(errOut, "job.batch.volcano.sh/"+job+": Completed") {
			t.Errorf("%s did not complete:\n%s", job, errOut)
		}
	}
}

func TestTheFailingExampleFails(t *testing.T) {
	code, out, errOut := lockstep(t, "submit", "--wait", "--timeout", "1m", example("failing.yaml"))
	if code != 1 || !strings.Contains(errOut, "job.batch.volcano.sh/failing: Failed") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	code, _, errOut = lockstep(t, "submit", example("failing.yaml"))
	if code != 1 || !strings.Contains(errOut, "already exists") {
		t.Errorf("sent twice: exit code %d\n%s", code, errOut)
	}
}

func TestTheDeploymentStartsAsAGang(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("deployment.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	for t.Context().Err() == nil {
		if _, out, _ := lockstep(t, "get", "podgroups"); strings.Contains(out, "Running") {
			return
		}
	}
	t.Error("the pod group does not run")
}

// TestTheDriversStartOneAfterTheOther deletes the driver that runs, and the next one starts.
func TestTheDriversStartOneAfterTheOther(t *testing.T) {
	if code, out, errOut := lockstep(t, "submit", example("drivers.yaml")); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	shows := func(group string, wants ...string) {
		t.Helper()
		localtest.Eventually(t, fmt.Sprint(group, " shows ", wants), func() error {
			_, out, errOut := lockstep(t, "get", "podgroup", group, "-o", "yaml")
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("%s%s", out, errOut)
				}
			}
			return nil
		})
	}
	shows("report-b", "phase: Pending", "spec.minResources: queue")
	shows("report-a", "phase: Running")
	if code, out, errOut := lockstep(t, "delete", "podgroup/report-a", "pod/report-a-driver"); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	shows("report-b", "phase: Running")
}

func TestBadManifestsAreRefusedByName(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	manifest := `{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{"name":"bad"},"spec":{"tasks":[{"replica":1}]}}`
	if err := os.WriteFile(bad, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errOut := lockstep(t, "submit", bad)
	if code != 1 || !strings.Contains(errOut, "spec.tasks[0].replica") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	if code, _, _ := lockstep(t, "submit"); code != 2 {
		t.Errorf("without a manifest: exit code %d", code)
	}
}

func TestTheApplicationsRun(t *testing.T) {
	dir := "../../examples/applications/"
	code, out, errOut := lockstep(t, "app", "up", "--wait", "--timeout", "1m", "-f", dir)
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	_, out, _ = lockstep(t, "app", "status", "shop")
	for _, want := range []string{"Details:    running", "Message: Ready:2/2", "Type: scaler"} {
		if !strings.Contains(out, want) {
			t.Errorf("the status lacks %q:\n%s", want, out)
		}
	}
	_, out, _ = lockstep(t, "app", "ls")
	if !strings.Contains(out, "says HELLO") || strings.Count(out, "running") < 5 {
		t.Errorf("ls:\n%s", out)
	}
	_, out, _ = lockstep(t, "app", "status", "shop", "--tree")
	if !strings.Contains(out, "Secret/shop-credential") {
		t.Errorf("tree:\n%s", out)
	}
	_, out, _ = lockstep(t, "app", "revisions", "shop")
	if !strings.Contains(out, "shop-v1") {
		t.Errorf("revisions:\n%s", out)
	}
	code, out, errOut = lockstep(t, "app", "dry-run", "--offline", "-f", dir+"shop.yaml")
	if code != 0 || !strings.Contains(out, "kind: Deployment") || !strings.Contains(out, "# trait storage, outputs.secret-shop-credential") {
		t.Errorf("dry-run: exit code %d\n%s%s", code, out, errOut)
	}
	code, out, errOut = lockstep(t, "app", "delete", "shop", "hello", "ordered")
	if code != 0 {
		t.Errorf("delete: exit code %d\n%s%s", code, out, errOut)
	}
}

// TestTheExamplesRunOnKubernetes133 uses an API server that emulates version 1.33, the oldest that
// it can emulate. This version cannot record who writes applications. So applications are off and
// say so; jobs and workflows run.
func TestTheExamplesRunOnKubernetes133(t *testing.T) {
	c := localtest.Start(t, append(slices.Clone(options), localtest.WithConfig(func(c *localcluster.Config) {
		c.ExtraArgs = map[localcluster.Component][]string{localcluster.APIServer: {"--emulated-version=kube=1.33"}}
	}))...)
	for _, args := range [][]string{
		{"submit", "--wait", "-f", example("gang.yaml")},
		{"submit", "--wait", "-f", "../../examples/workflows/diamond.yaml"},
		{"app", "up", "-f", "../../examples/applications/shop.yaml"},
	} {
		if code, out, errOut := lockstepAt(c, append(args, "--timeout", "1m")...); code != 0 {
			t.Fatalf("%q: exit code %d\n%s%s", args, code, out, errOut)
		}
	}
	localtest.Eventually(t, "the application says why it is off", func() error {
		if _, out, errOut := lockstepAt(c, "app", "status", "shop"); !strings.Contains(out, "1.36") {
			return fmt.Errorf("its status:\n%s%s", out, errOut)
		}
		return nil
	})
}

// TestTheAddonsAreEnabled enables an addon with the one that it depends on, as docs/addons.md does.
func TestTheAddonsAreEnabled(t *testing.T) {
	code, out, errOut := lockstep(t, "addon", "enable", "greeter", "text=Good morning", "replicas=2", "--registry", "../../examples/addons", "--yes", "--wait", "--timeout", "1m")
	if code != 0 || !strings.Contains(out, `greeter says "Good morning"`) || !strings.Contains(errOut, "greetings 1.0.0, greeter 1.1.0:") {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	_, out, errOut = lockstep(t, "addon", "list", "--registry", "../../examples/addons")
	for _, want := range []string{"greeter", "greetings", "1.1.0", "running"} {
		if !strings.Contains(out, want) {
			t.Errorf("addon list:\n%s%s", out, errOut)
		}
	}
	_, out, errOut = lockstep(t, "get", "configmap", "greeter-text", "-n", "greeter", "-o", "yaml")
	if !strings.Contains(out, "greeting: Good morning") {
		t.Errorf("the text:\n%s%s", out, errOut)
	}
	for _, name := range []string{"greeter", "greetings"} {
		if code, out, errOut := lockstep(t, "addon", "disable", name, "--wait"); code != 0 {
			t.Errorf("disable %s: exit code %d\n%s%s", name, code, out, errOut)
		}
	}
}
