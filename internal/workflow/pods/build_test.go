package pods

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

var rewrite = flag.Bool("rewrite", false, "write the expected pods anew")

// TestBuild runs the workflows of testdata: the first pods that the engine requests are compared
// with the expected pods, which follow the workflow in the file. Options for Build are in an
// annotation.
func TestBuild(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(data), "\n---\n")
			got := pods(t, input)
			if *rewrite {
				if err := os.WriteFile(file, []byte(input+"\n---\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pods differ (-want +got); go test -rewrite writes them anew:\n%s", diff)
			}
		})
	}
}

// pods returns the pods of the workflow's first step, or the errors, as YAML.
func pods(t *testing.T, input string) string {
	t.Helper()
	w := &wf.Workflow{}
	if err := yaml.UnmarshalStrict([]byte(input), w); err != nil {
		t.Fatal(err)
	}
	w.UID, w.CreationTimestamp = "u-1", metav1.NewTime(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	if w.Namespace == "" {
		w.Namespace = "default"
	}
	var options Options
	if err := yaml.UnmarshalStrict([]byte(w.Annotations["options"]), &options); err != nil {
		t.Fatal(err)
	}
	if text := w.Annotations["repository"]; text != "" {
		var err error
		if options.Repository, err = ParseRepository(text); err != nil {
			t.Fatal(err)
		}
	}
	delete(w.Annotations, "options")
	delete(w.Annotations, "repository")
	result := engine.New(w, engine.Config{Evaluate: template.InProcess()}).Step(w.CreationTimestamp.Time)
	if len(result.Create) == 0 {
		t.Fatalf("no pods: %s %s", w.Status.Phase, w.Status.Message)
	}
	var out []string
	for _, create := range result.Create {
		pod, err := Build(w, create, options)
		if err != nil {
			out = append(out, "error: "+err.Error()+"\n")
			continue
		}
		data, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSuffix(string(data), "status: {}\n"))
	}
	return strings.Join(out, "---\n")
}

func TestParseEntrypoints(t *testing.T) {
	got, err := ParseEntrypoints([]byte("known: {entrypoint: [/run], cmd: [default]}\nshell:latest: {cmd: [sh, -i]}\n"))
	if want := map[string]Entrypoint{"known": {Command: []string{"/run"}, Args: []string{"default"}}, "shell:latest": {Args: []string{"sh", "-i"}}}; err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"known: {}", "known: {command: [x]}", "[x]"} {
		if _, err := ParseEntrypoints([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
