package realnodes

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/yaml"

	"k8s.io/utils/ptr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	lockstepscheme "lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// jobs returns a client of the batch API.
func jobs(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &batch.GroupVersion
	config.NegotiatedSerializer = lockstepscheme.Codecs.WithoutConversion()
	return rest.RESTClientFor(config)
}

func (e *env) create(t *testing.T, j *batch.Job) {
	t.Helper()
	if err := e.jobs.Post().Namespace(j.Namespace).Resource("jobs").Body(j).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// createExample creates the job of a file in examples/real.
func (e *env) createExample(t *testing.T, namespace, file string) *batch.Job {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../examples/real", file))
	if err != nil {
		t.Fatal(err)
	}
	j := &batch.Job{}
	if err := yaml.UnmarshalStrict(data, j); err != nil {
		t.Fatal(err)
	}
	j.Namespace = namespace
	e.create(t, j)
	return j
}

// podSpec returns the spec of a pod that runs a shell script on a real node.
func podSpec(script string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		NodeSelector:  map[string]string{realnodes.NodeTypeLabel: realnodes.NodeTypeReal},
		Containers: []corev1.Container{{
			Name: "main", Image: image, Command: []string{"/bin/sh", "-ec", script},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")}},
		}},
	}
}

// server is the script of a pod that serves its host name on port 8080.
const server = "mkdir /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"

func (e *env) runPod(t *testing.T, namespace, name string, spec corev1.PodSpec) *corev1.Pod {
	t.Helper()
	spec.SchedulerName = "lockstep"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}, Spec: spec}
	if _, err := e.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod "+name+" to run", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = e.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	return pod
}

// job returns a job of one task with replicas pods.
func job(namespace, name string, replicas int32, spec corev1.PodSpec) *batch.Job {
	return &batch.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batch.JobSpec{SchedulerName: "lockstep", MinAvailable: replicas, Tasks: []batch.TaskSpec{{
			Name: "t", Replicas: replicas, Template: corev1.PodTemplateSpec{Spec: spec},
		}}},
	}
}

func (e *env) waitJob(t *testing.T, j *batch.Job, phases ...batch.JobPhase) *batch.Job {
	t.Helper()
	got := &batch.Job{}
	eventually(t, fmt.Sprintf("job %s to be %v", j.Name, phases), func(ctx context.Context) (bool, error) {
		err := e.jobs.Get().Namespace(j.Namespace).Resource("jobs").Name(j.Name).Do(ctx).Into(got)
		return err == nil && slices.Contains(phases, got.Status.State.Phase), err
	})
	return got
}

func (e *env) podsOf(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list, err := e.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestUpIsQuick(t *testing.T) {
	t.Logf("up took %.1f s until 2 real nodes were ready", shared.get(t).took.Seconds())
}

func TestAGangFindsItsPeersOnBothNodes(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	j := e.createExample(t, ns, "gang.yaml")
	got := e.waitJob(t, j, batch.Completed, batch.Failed)
	if got.Status.State.Phase != batch.Completed || got.Status.Succeeded != 4 {
		t.Errorf("the job is %s with %d succeeded", got.Status.State.Phase, got.Status.Succeeded)
	}
	nodes := map[string]int{}
	pods := e.podsOf(t, ns)
	for _, p := range pods {
		nodes[p.Spec.NodeName]++
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != 0 {
			t.Errorf("%s: %+v", p.Name, p.Status.ContainerStatuses[0].State)
			continue
		}
		log, err := e.client.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, peer := range pods {
			if !strings.Contains(end.Message, peer.Name) {
				t.Errorf("%s did not meet %s: %q", p.Name, peer.Name, end.Message)
			}
			if want := fmt.Sprintf("%s.ring is %[1]s", peer.Name); !strings.Contains(string(log), want) {
				t.Errorf("the log of %s lacks %q:\n%s", p.Name, want, log)
			}
		}
	}
	if nodes["real-1"] != 2 || nodes["real-2"] != 2 {
		t.Errorf("pods by node: %v", nodes)
	}
}

func (e *env) exec(t *testing.T, namespace, pod string, stdin io.Reader, command ...string) string {
	t.Helper()
	out, err := e.tryExec(t.Context(), namespace, pod, stdin, command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (e *env) tryExec(ctx context.Context, namespace, pod string, stdin io.Reader, command ...string) (string, error) {
	req := e.client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(e.config, http.MethodGet, req.URL().String())
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errOut}); err != nil {
		return "", fmt.Errorf("exec %v in %s: %w: %s", command, pod, err, errOut.String())
	}
	return out.String(), nil
}

func TestExecCopyAndPortForward(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	e.runPod(t, ns, "web", podSpec(server))
	if got := e.exec(t, ns, "web", nil, "hostname"); got != "web\n" {
		t.Errorf("exec hostname: %q", got)
	}
	// Copies a file as kubectl cp does: with tar at both ends of an exec.
	content := []byte(rand.Text())
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "copied", Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	e.exec(t, ns, "web", &archive, "tar", "xf", "-", "-C", "/tmp/www")
	back := tar.NewReader(strings.NewReader(e.exec(t, ns, "web", nil, "tar", "cf", "-", "-C", "/tmp/www", "copied")))
	if _, err := back.Next(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("copied there and back: %q, %v; want %q", got, err, content)
	}
	if got := e.get(t, ns, "web", "/copied"); got != string(content) {
		t.Errorf("through the forwarded port: %q", got)
	}
}

// get fetches a page from a pod's port 8080 through a forwarded port.
func (e *env) get(t *testing.T, namespace, pod, path string) string {
	t.Helper()
	url := e.client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(e.config)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		[]string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	defer func() { close(stop); <-done }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", ports[0].Local, path))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestServicesAreRoutedAndNamed(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	host, err := realnodes.Check()
	if err != nil {
		t.Fatal(err)
	}
	if host.ServiceProxy == "" {
		t.Skipf("cluster IPs are not routed here: %s", host.NoServiceProxy)
	}
	ns := e.namespace(t)
	e.runPod(t, ns, "web", podSpec(server))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "front"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := e.client.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := e.exec(t, ns, "web", nil, "sh", "-c", "until wget -q -O - http://front; do sleep 0.2; done")
	if got != "web\n" {
		t.Errorf("front answers %q", got)
	}
	// The API server must be reachable from pods.
	got = e.exec(t, ns, "web", nil, "sh", "-c", `until nc -w 5 "$KUBERNETES_SERVICE_HOST" 443 </dev/null; do sleep 0.2; done; echo open`)
	if !strings.Contains(got, "open") {
		t.Errorf("the API server from a pod: %q", got)
	}
}

func TestLimitsAreInTheCgroup(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	spec := podSpec("sleep 1000")
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("48Mi")}
	pod := e.runPod(t, ns, "limited", spec)
	parent := realnodes.CgroupOf(e.name, filepath.Join(e.dir, "real")) + "/" + pod.Spec.NodeName
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	for names, want := range map[string]string{
		"memory.limit_in_bytes memory.max": "50331648",
		"cpu.cfs_quota_us cpu.max":         "25000",
	} {
		if got := cgroupValue(t, parent, id, strings.Fields(names)); got != want {
			t.Errorf("%s of the container: %q, want %s", names, got, want)
		}
	}
}

// cgroupValue returns the first word of a container's cgroup file. names are the file's names in
// cgroup v1 and v2.
func cgroupValue(t *testing.T, parent, id string, names []string) string {
	t.Helper()
	value := ""
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(path, parent) || filepath.Base(filepath.Dir(path)) != id || !slices.Contains(names, d.Name()) {
			return nil // cgroups of other programs come and go
		}
		data, err := os.ReadFile(path)
		if fields := strings.Fields(string(data)); len(fields) > 0 {
			value = fields[0]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestFailuresAreSeenOnTheJob(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	exits := job(ns, "exits", 1, podSpec("echo -n spent > /dev/termination-log; exit 3"))
	// tail keeps the line, which never ends, in memory. The shell outlives it for a moment: containerd
	// reports OOMKilled only if the kernel's event reaches it before the end of the container.
	hungry := podSpec("tail /dev/zero; code=$?; sleep 1; exit $code")
	hungry.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("24Mi")}
	killed := job(ns, "hungry", 1, hungry)
	for _, j := range []*batch.Job{exits, killed} {
		j.Spec.MaxRetry = ptr.To[int32](1)
		e.create(t, j)
	}
	for _, tc := range []struct {
		job    *batch.Job
		code   int32
		reason string
	}{{exits, 3, "Error"}, {killed, 137, "OOMKilled"}} {
		got := e.waitJob(t, tc.job, batch.Failed, batch.Completed)
		if got.Status.State.Phase != batch.Failed || got.Status.Failed != 1 {
			t.Errorf("%s: phase %s, %d failed; want Failed and 1", tc.job.Name, got.Status.State.Phase, got.Status.Failed)
		}
		pod, err := e.client.CoreV1().Pods(ns).Get(t.Context(), tc.job.Name+"-t-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		end := pod.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != tc.code || end.Reason != tc.reason {
			t.Errorf("%s: %+v; want exit code %d, %s", pod.Name, end, tc.code, tc.reason)
		}
	}
}

func TestRealAndSimulatedNodesStayApart(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	spec := podSpec("sleep 1000")
	spec.NodeSelector = nil
	if pod := e.runPod(t, ns, "anywhere", spec); !strings.HasPrefix(pod.Spec.NodeName, "real-") {
		t.Errorf("a pod without toleration runs on %s", pod.Spec.NodeName)
	}
	spec.NodeSelector = map[string]string{realnodes.NodeTypeLabel: localcluster.NodeTypeSimulated}
	spec.Tolerations = []corev1.Toleration{{Key: realnodes.NodeTypeLabel, Operator: corev1.TolerationOpExists}}
	if pod := e.runPod(t, ns, "simulated", spec); pod.Status.ContainerStatuses[0].ContainerID != "" {
		t.Errorf("a pod on a simulated node has container %s", pod.Status.ContainerStatuses[0].ContainerID)
	}
	nodes, err := e.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		real := n.Labels[realnodes.NodeTypeLabel] == realnodes.NodeTypeReal
		if runtimeIs := strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://"); runtimeIs != real {
			t.Errorf("node %s is real: %t, and its runtime is %s", n.Name, real, n.Status.NodeInfo.ContainerRuntimeVersion)
		}
		if real && n.Spec.PodCIDR == "" {
			t.Errorf("node %s has no pod CIDR", n.Name)
		}
	}
}

func TestAKubeletMayOnlyTouchItsOwn(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	config := rest.CopyConfig(e.config)
	config.BearerToken = ""
	config.CertFile, config.KeyFile = filepath.Join(e.dir, "real/real-1/node.crt"), filepath.Join(e.dir, "real/real-1/node.key")
	kubelet := kubernetes.NewForConfigOrDie(config)
	patch := []byte(`{"metadata":{"labels":{"x":"y"}}}`)
	for node, allowed := range map[string]bool{"real-1": true, "real-2": false} {
		_, err := kubelet.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{})
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("real-1 changes %s: %v", node, err)
		}
	}
	if _, err := kubelet.CoreV1().Secrets("kube-system").Get(t.Context(), "any", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("real-1 reads a secret that no pod of its uses: %v", err)
	}
}

func TestAJobSurvivesARestartOfItsKubelet(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	spec := podSpec("until [ -e /tmp/go ]; do sleep 0.1; done")
	spec.NodeSelector = map[string]string{corev1.LabelHostname: "real-2"}
	j := job(ns, "lasting", 1, spec)
	e.create(t, j)
	e.waitJob(t, j, batch.Running)
	pid, err := e.kubelet("real-2")
	if err != nil {
		t.Fatal(err)
	}
	if err := kill(pid); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kubelet to be started again", func(context.Context) (bool, error) {
		again, err := e.kubelet("real-2")
		return err == nil && again != pid, nil
	})
	eventually(t, "exec to work again", func(ctx context.Context) (bool, error) {
		_, err := e.tryExec(ctx, ns, "lasting-t-0", nil, "touch", "/tmp/go")
		return err == nil, nil // a new kubelet does not know its pods at once
	})
	if got := e.waitJob(t, j, batch.Completed, batch.Failed); got.Status.State.Phase != batch.Completed {
		t.Errorf("the job is %s", got.Status.State.Phase)
	}
}

// TestANodeDies has a cluster of its own, in which nothing is restarted: a node whose kubelet is
// killed becomes not ready.
func TestANodeDies(t *testing.T) {
	skipUnlessPossible(t)
	t.Parallel()
	before, err := takeFootprint()
	if err != nil {
		t.Fatal(err)
	}
	e, err := up("mortal", "--real-nodes=2", "--nodes=0", "--restart=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := lockstep("down", "--name", e.name); err != nil {
			t.Error(err)
		}
		now, err := takeFootprint()
		if err != nil {
			t.Error(err)
		}
		for _, kind := range []string{"cgroup", "process"} {
			for _, line := range now[kind] {
				if strings.Contains(line, realnodes.CgroupOf(e.name, filepath.Join(e.dir, "real"))) || strings.Contains(line, e.dir) {
					t.Errorf("down left the %s %s", kind, line)
				}
			}
		}
		for _, kind := range []string{"interface", "mount", "sysctl", "nft list ruleset", "iptables-save", "ip route", "file"} {
			for _, line := range now[kind] {
				if !slices.Contains(before[kind], line) {
					t.Errorf("down left the %s %s", kind, line)
				}
			}
		}
	})
	ns := e.namespace(t)
	spec := podSpec("until [ -e /tmp/go ]; do sleep 0.1; done")
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{batch.JobNameKey: "spread"}},
	}}
	j := job(ns, "spread", 4, spec)
	e.create(t, j)
	e.waitJob(t, j, batch.Running)
	victim := e.podsOf(t, ns)[0].Spec.NodeName
	pid, err := e.kubelet(victim)
	if err != nil {
		t.Fatal(err)
	}
	if err := kill(pid); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all pods to run on the other node", func(ctx context.Context) (bool, error) {
		list, err := e.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		running := 0
		for _, p := range list.Items {
			if p.Spec.NodeName != victim && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running++
			}
		}
		return running == 4, nil
	})
	for _, p := range e.podsOf(t, ns) {
		e.exec(t, ns, p.Name, nil, "touch", "/tmp/go")
	}
	got := e.waitJob(t, j, batch.Completed, batch.Failed)
	if got.Status.State.Phase != batch.Completed || got.Status.Succeeded != 4 || got.Status.RetryCount != 0 {
		t.Errorf("the job is %s, %d succeeded, %d retries; a dead node is not its failure", got.Status.State.Phase, got.Status.Succeeded, got.Status.RetryCount)
	}
}
