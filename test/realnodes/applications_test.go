package realnodes

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

//go:embed testdata/applications.yaml
var applicationCases []byte

// applicationCase is an application and its expected output.
type applicationCase struct {
	Name       string         `json:"name"`
	Components []any          `json:"components"`
	Workflow   map[string]any `json:"workflow,omitempty"`
	// Exec is a command to run in one of its pods. Logs is the component whose pods' logs are read.
	Exec      []string `json:"exec,omitempty"`
	Container string   `json:"container,omitempty"`
	Logs      string   `json:"logs,omitempty"`
	// Pods is the number of pods of the component. The default is one.
	Pods int `json:"pods,omitempty"`
	// Want is a part of the expected output.
	Want string `json:"want"`
	// Then is the next state of the application.
	Then *applicationCase `json:"then,omitempty"`
}

func TestApplications(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	cases := readApplications(t)
	if len(cases) < 15 {
		t.Fatalf("%d cases", len(cases))
	}
	ns := e.namespace(t)
	// All at once, because most of the time is spent on starting pods.
	e.deploy(t, ns, cases...)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			e.look(t, ns, c)
			if next := c.Then; next != nil {
				next.Name, next.Exec, next.Logs = c.Name, c.Exec, c.Logs
				e.deploy(t, ns, next)
				e.look(t, ns, next)
			}
		})
	}
}

func readApplications(t *testing.T) []*applicationCase {
	t.Helper()
	var cases []*applicationCase
	if err := yaml.UnmarshalStrict(applicationCases, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// deploy deploys applications and waits until they run, as users do.
func (e *env) deploy(t *testing.T, ns string, cases ...*applicationCase) {
	t.Helper()
	var manifests []string
	for _, c := range cases {
		spec := map[string]any{"components": c.Components}
		if c.Workflow != nil {
			spec["workflow"] = c.Workflow
		}
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
		u.SetName(c.Name)
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, string(text))
	}
	file := filepath.Join(t.TempDir(), "apps.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.app(ns, "up", "-f", file, "--wait", "--timeout", patience.String()); err != nil {
		t.Fatal(err)
	}
}

// look checks the pods of an application with the commands of users.
func (e *env) look(t *testing.T, ns string, c *applicationCase) {
	t.Helper()
	args := []string{"logs", c.Name, "--component", c.Logs}
	if c.Exec != nil {
		args = append([]string{"exec", c.Name}, c.options()...)
		args = append(append(args, "--"), c.Exec...)
	}
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		out, err := e.app(ns, args...)
		last = fmt.Sprint(out, err)
		// A pod may be terminating when the application is healthy again.
		return err == nil && strings.Contains(out, c.Want), nil
	})
	if err != nil {
		t.Fatalf("%s: %s", strings.Join(args, " "), last)
	}
	if c.Pods > 0 {
		out, err := e.app(ns, "status", c.Name, "--pod")
		if err != nil || strings.Count(out, "Running") != c.Pods {
			t.Errorf("%v: not %d pods that run:\n%s", err, c.Pods, out)
		}
	}
}

func (c *applicationCase) options() []string {
	if c.Container == "" {
		return nil
	}
	return []string{"--container", c.Container}
}

// app runs a verb about applications.
func (e *env) app(ns string, args ...string) (string, error) {
	flags := []string{"--kubeconfig", filepath.Join(e.dir, "admin.kubeconfig"), "-n", ns}
	return lockstep(append(append([]string{"app", args[0]}, flags...), args[1:]...)...)
}

func TestAPortOfAnApplicationIsForwarded(t *testing.T) {
	e := shared.get(t)
	t.Parallel()
	ns := e.namespace(t)
	web := readApplications(t)[0]
	e.deploy(t, ns, web)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "app", "port-forward", "--kubeconfig", filepath.Join(e.dir, "admin.kubeconfig"), "-n", ns, web.Name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`from (\S+) ->`).FindSubmatch(line[:n])
	if said == nil {
		t.Fatalf("it says %q", line[:n])
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/", said[1]))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "from web\n" {
		t.Errorf("it answers %q: %v", body, err)
	}
}
