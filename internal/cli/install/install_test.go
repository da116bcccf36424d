package install_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/daemon"
	"lockstep.dev/lockstep/internal/install"
)

func TestInstallUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no dry run":          {[]string{"--dry-run=x"}, "--dry-run\" flag: want none, client or server"},
		"agent without image": {[]string{"--with-agent"}, "--with-agent needs --image"},
		"configmap alone":     {[]string{"--workflow-configmap=argo/x"}, "give --image too"},
		"executor alone":      {[]string{"--executor-image=x"}, "give --image too"},
		"no manager":          {[]string{"--replicas=0"}, "--replicas=0"},
		"form of output":      {[]string{"--dry-run=client", "-o", "table"}, "want name, json or yaml"},
		"an argument":         {[]string{"all"}, "all"},
		"scheduling alone":    {[]string{"--scheduler-config=x"}, "give --image too"},
		"no such file":        {[]string{"--image=x", "--scheduler-config=/does/not/exist"}, "--scheduler-config /does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			var errOut strings.Builder
			if code := cli.Run(append([]string{"install"}, c.args...), strings.NewReader(""), io.Discard, &errOut); code != command.ExitUsage || !strings.Contains(errOut.String(), c.want) {
				t.Errorf("exit code %d: %s", code, errOut.String())
			}
		})
	}
}

// TestInstallPrintsManifests reads the output of a dry run as kubectl would, and checks that the
// Deployment calls this program with flags that exist.
func TestInstallPrintsManifests(t *testing.T) {
	var out, errOut strings.Builder
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	const configuration = "actions: allocate, preempt\n"
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"install", "--dry-run=client", "-o", "yaml", "--image=registry.example/lockstep:1", "--replicas=3", "--with-agent", "--applications-act-as-manager", "--scheduler-config", file}
	if code := cli.Run(args, strings.NewReader(""), &out, &errOut); code != command.ExitOK {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	objects, err := install.Objects(install.Options{Image: "registry.example/lockstep:1", Agent: true, ActAsManager: true})
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(out.String(), "\n---\n")
	if len(documents) != len(objects) {
		t.Errorf("%d manifests of %d", len(documents), len(objects))
	}
	var deployment appsv1.Deployment
	images := 0
	for _, d := range documents {
		images += strings.Count(d, "image: registry.example/lockstep:1")
		if strings.Contains(d, "kind: Deployment") && strings.Contains(d, "name: lockstep-manager") && !strings.Contains(d, "CustomResourceDefinition") {
			if err := yaml.UnmarshalStrict([]byte(d), &deployment); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The manager finds its scheduler configuration where its flag says.
	var cm corev1.ConfigMap
	for _, d := range documents {
		if strings.Contains(d, "kind: ConfigMap") && strings.Contains(d, "name: lockstep-scheduler") && !strings.Contains(d, "kind: Deployment") {
			if err := yaml.UnmarshalStrict([]byte(d), &cm); err != nil {
				t.Fatal(err)
			}
		}
	}
	pod := deployment.Spec.Template
	for _, arg := range pod.Spec.Containers[0].Args {
		if path, found := strings.CutPrefix(arg, "--scheduler-config="); found {
			at := slices.IndexFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(path) })
			if at < 0 || pod.Annotations["lockstep.dev/scheduler-config"] == "" || cm.Data[filepath.Base(path)] != configuration {
				t.Errorf("%s: mount %d, annotations %v, data %v", arg, at, pod.Annotations, cm.Data)
			}
		}
	}
	if !strings.Contains(strings.Join(pod.Spec.Containers[0].Args, " "), "--scheduler-config=") {
		t.Errorf("arguments: %q", pod.Spec.Containers[0].Args)
	}
	if images != 2 {
		t.Errorf("the image is in %d places, want the manager's and the agent's", images)
	}
	if n := deployment.Spec.Replicas; n == nil || *n != 3 {
		t.Fatalf("replicas: %v", n)
	}
	c := deployment.Spec.Template.Spec.Containers[0]
	cmd := daemon.NewManager(command.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	if c.Args[0] != cmd.Name() {
		t.Fatalf("arguments: %q", c.Args)
	}
	if err := cmd.ParseFlags(c.Args[1:]); err != nil {
		t.Error(err)
	}
	if !strings.Contains(strings.Join(c.Args, " "), "--applications-act-as-manager") {
		t.Errorf("arguments: %q", c.Args)
	}
}

func TestInstallNamesObjects(t *testing.T) {
	var out strings.Builder
	if code := cli.Run([]string{"install", "--dry-run=client"}, strings.NewReader(""), &out, os.Stderr); code != command.ExitOK {
		t.Fatal(code)
	}
	for _, want := range []string{
		"customresourcedefinition.apiextensions.k8s.io/jobs.batch.volcano.sh created (dry run)\n",
		"namespace/lockstep-system created (dry run)\n",
		"queue.scheduling.volcano.sh/default created (dry run)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(out.String(), "deployment.apps/") {
		t.Error("without an image nothing runs in the cluster")
	}
}
