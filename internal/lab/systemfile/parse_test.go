package systemfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const whole = `name: toy
controlPlane:
  scheduler: true
  args:
    kube-controller-manager: [--kube-api-qps=100]
manifests: [crd.yaml, rbac/]
processes:
- name: controller
  command: [./toy, --kubeconfig, "${KUBECONFIG}", "--port=${PORT}", "--metrics=${PORT_metrics}"]
  env:
    RATE: "20"
  ports: [metrics]
  metrics: http://127.0.0.1:${PORT_metrics}/metrics
  ready: {url: "http://127.0.0.1:${PORT}/healthz",
    log: ^started}
users: ["system:serviceaccount:toy:*"]
load:
  gangs: true
  job: |
    apiVersion: toy.example.com/v1
    kind: Toy
    metadata:
      name: {{.Name}}
    spec:
      pods: {{.Pods}}
      {{- if .Gang}}
      minimum: {{.Min}}
      {{- end}}
      template: {{.PodSpec}}
pods:
  name: ^(?P<job>.+)-(?P<index>\d+)$
status:
  running: '{.status.active}'
  settleTime: 5s
floor:
  stop: [controller]
clients:
- name: controller
  qps: 50
  burst: 100
settings:
  workers: 4
`

func TestAFileWithAllFields(t *testing.T) {
	f, err := Parse("toy.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	u, err := f.Render(Job{Namespace: "bench", Name: "bench-00001", Pods: 3, Gang: true, Min: 3, PodSpec: `{"containers":[]}`})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "toy.example.com/v1", "kind": "Toy", "metadata": map[string]any{"name": "bench-00001", "namespace": "bench"},
		"spec": map[string]any{"pods": int64(3), "minimum": int64(3), "template": map[string]any{"containers": []any{}}},
	}
	if diff := cmp.Diff(want, u.Object); diff != "" {
		t.Error(diff)
	}
	job, index, ok := f.Identify("bench-00001-17")
	if job != "bench-00001" || index != 17 || !ok {
		t.Errorf("%q, %d, %v", job, index, ok)
	}
	if _, _, ok := f.Identify("launcher"); ok {
		t.Error("a pod whose name does not match is of the load")
	}
	if c := f.Clients[0]; c.QPS != "50" || c.Burst != "100" || f.Settings["workers"] != "4" {
		t.Errorf("%+v, %v", c, f.Settings)
	}
}

func TestErrorsNameTheFieldAndItsLine(t *testing.T) {
	for sentence, c := range map[string]struct{ old, new, want string }{
		"an unknown field": {"manifests:", "manifest:", `toy.yaml:6: unknown field "manifest"`},
		"an unknown field of a process": {"  ports: [metrics]", "  port: [metrics]",
			`toy.yaml:12: processes[0]: unknown field "port"`},
		"a list where text is wanted": {"name: toy", "name: [toy]", "toy.yaml:1: name: cannot unmarshal !!seq into string"},
		// The library counts the lines of such errors from 0.
		"no YAML":                     {"users: [", "users: ]", "toy.yaml:15: did not find expected node content"},
		"a field that is given twice": {"users:", "name: x\nusers:", `toy.yaml:16: name: mapping key "name" already defined at line 1`},
		"a bad name":                  {"name: toy", "name: To_y", `toy.yaml:1: name: "To_y": `},
		"a built-in name":             {"name: toy", "name: kubernetes", "toy.yaml:1: name: kubernetes is the name of a built-in system"},
		"an unknown component": {"kube-controller-manager:", "kubelet:",
			"toy.yaml:5: controlPlane.args.kubelet: unknown component"},
		"an unknown variable in a command": {"${PORT_metrics}", "${PORT_web}",
			"toy.yaml:9: processes[0].command[4]: unknown variable ${PORT_web}; there are: KUBECONFIG, PORT, PORT_metrics"},
		"an unknown variable in the environment": {`"20"`, "${HOME}", "toy.yaml:11: processes[0].env.RATE: unknown variable ${HOME}"},
		"no command": {`  command: [./toy, --kubeconfig, "${KUBECONFIG}", "--port=${PORT}", "--metrics=${PORT_metrics}"]`, "",
			"toy.yaml:8: processes[0].command: is required"},
		"an unknown variable in the metrics": {"${PORT_metrics}/metrics", "${PORT_metric}/metrics", "toy.yaml:13: processes[0].metrics: unknown variable ${PORT_metric}; there are: KUBECONFIG, PORT, PORT_metrics"},
		"a bad expression for the log":       {"^started", "'('", "toy.yaml:15: processes[0].ready.log: "},
		"a template that does not parse": {"{{.Name}}", "{{.Name",
			"toy.yaml:19: load.job: template: load.job:"},
		"a template of an unknown value": {"{{.Name}}", "{{.Jobs}}", "toy.yaml:19: load.job: template: load.job:4:"},
		"a job that is no YAML":          {"kind: Toy", "kind: [", "toy.yaml:19: load.job: the job is no YAML object: "},
		"a job without a kind":           {"    kind: Toy\n", "", "toy.yaml:19: load.job: the job is no Kubernetes object: "},
		"a job of another name":          {"{{.Name}}", "other", `toy.yaml:19: load.job: the job is named "other": want {{.Name}}`},
		"pods without a job":             {"?P<job>", "?P<jib>", "toy.yaml:31: pods.name: has no group (?P<job>...)"},
		"a bad duration":                 {"5s", "soon", "toy.yaml:34: status.settleTime: cannot unmarshal !!str `soon` into time.Duration"},
		"an unknown process to stop":     {"[controller]", "[controler]", "toy.yaml:36: floor.stop[0]: controler is no process"},
		"the server to stop":             {"[controller]", "[etcd]", "toy.yaml:36: floor.stop[0]: etcd is no process"},
		"a client without a burst":       {"  burst: 100\n", "", "toy.yaml:38: clients[0]: want name, qps and burst"},
	} {
		text := strings.Replace(whole, c.old, c.new, 1)
		if text == whole {
			t.Fatalf("%s: %q is not in the file", sentence, c.old)
		}
		_, err := Parse("toy.yaml", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", sentence, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"": "toy.yaml: is empty", whole + "---\nname: x\n": "toy.yaml: want one document",
		strings.Repeat("#", bytesMax+1): "toy.yaml: is larger than 1048576 bytes", "- a": "toy.yaml:1: cannot unmarshal",
	} {
		if _, err := Parse("toy.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
}

// FuzzParse checks that no text makes Parse fail in another way than by an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("name: [&a *a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if file, err := Parse("f", text); (file == nil) == (err == nil) {
			t.Errorf("%v, %v", file, err)
		}
	})
}
