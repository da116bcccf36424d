package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNamesAreToldFromKinds(t *testing.T) {
	served := func(word string) bool { return word == "widget" || word == "widgets" }
	many, one := takes{kind: workflowWords}, takes{kind: workflowWords, one: true}
	app, appOne := takes{kind: applicationWords, said: true}, takes{kind: applicationWords, said: true, one: true}
	for _, c := range []struct {
		takes takes
		args  string
		want  string // names, or a part of an error
		wrong bool
	}{
		{many, "", "", false},
		{many, "hello", "hello", false},
		{many, "hello other", "hello other", false},
		{many, "@latest", "@latest", false},
		{many, "wf/hello", "hello", false},
		{many, "WF/hello workflows.argoproj.io/other workflows.v1alpha1.argoproj.io/third", "hello other third", false},
		{many, "wf hello other", "hello other", false},
		{many, "Workflow hello", "hello", false},
		{many, "wf/job", "job", false},
		{many, "wf job", "job", false}, // the kind is given, so only names follow
		{many, "wf/wf", "wf", false},
		{many, "hello widget", "hello widget", false}, // a kind would come before the names

		{many, "job hello", `"job" is another kind`, true},
		{many, "jobs.batch.volcano.sh hello", "another kind", true},
		{many, "vcjob hello", "another kind", true},
		{many, "deployment hello", "another kind", true},
		{many, "po hello", "another kind", true},
		{many, "job", "wf/job", true},
		{many, "wf", "wf/wf", true},
		{many, "hello job other", `"job" is another kind`, true},
		{many, "widget hello", `"widget" is another kind`, true},
		{many, "job/hello", "jobs.batch.volcano.sh", true},
		{many, "hello job/other", "jobs.batch.volcano.sh", true},
		{many, "wjob/hello", `unknown kind "wjob"`, true},
		{many, "wf wf/hello", "not both", true},
		{many, "wf job/hello", "not both", true},
		{many, "wf/", "want NAME or wf/NAME", true},
		{many, "/hello", "want NAME or wf/NAME", true},
		{many, "wf/a/b", "want NAME or wf/NAME", true},

		{one, "hello", "hello", false},
		{one, "hello job", "hello job", false}, // the name of a pod
		{one, "wf/hello pod/a", "hello pod/a", false},
		{one, "wf hello pod/a", "hello pod/a", false},
		{one, "job hello", "another kind", true},
		{one, "widget hello", "another kind", true},
		{one, "job/hello", "jobs.batch.volcano.sh", true},

		{takes{kind: applicationWords}, "app shop", "shop", false},
		{takes{kind: applicationWords}, "job shop", "another kind", true},
		// 'lockstep app' says the kind, so that a word alone is a name.
		{app, "secrets", "secrets", false},
		{app, "app", "app", false},
		{app, "app/secrets", "secrets", false},
		{app, "shop secrets", "shop secrets", false},
		{app, "app shop secrets", "shop secrets", false},
		{app, "job shop", "another kind", true},
		{app, "widget shop", "another kind", true},
		{app, "job/shop", "jobs.batch.volcano.sh", true},
		{appOne, "secrets sh", "secrets sh", false},
		{appOne, "widget sh", "widget sh", false},
		{appOne, "app/secrets sh", "secrets sh", false},
		{appOne, "job/shop sh", "jobs.batch.volcano.sh", true},

		{takes{kind: cronWords}, "cwf/nightly", "nightly", false},
		{takes{kind: cronWords}, "wf/nightly", "workflows.argoproj.io", true},
		{takes{kind: nodeWords}, "node/real-1 real-2", "real-1 real-2", false},
	} {
		got, err := c.takes.read(strings.Fields(c.args), served)
		var usage usageError
		switch {
		case c.wrong && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %q: got %q, %v, want an error of usage with %q", c.takes.kind.singular, c.args, got, err, c.want)
		case !c.wrong && (err != nil || strings.Join(got, " ") != c.want):
			t.Errorf("%s %q: got %q, %v, want %q", c.takes.kind.singular, c.args, got, err, c.want)
		}
	}
}

// TestNoWordStandsForTwoKinds checks that each word names one kind only. The exception is job, a
// kind of both Kubernetes and Lockstep.
func TestNoWordStandsForTwoKinds(t *testing.T) {
	seen := map[string]string{}
	for _, k := range knownKinds {
		for _, w := range append(slices.Clone(k.short), k.resource, k.plural(), k.singular) {
			if other := seen[w]; other != "" && other != k.resource && w != "job" && w != "jobs" {
				t.Errorf("%q stands for %s and %s", w, other, k.resource)
			}
			seen[w] = k.resource
			if found, ok := knownKind(w); !ok || found.resource != k.resource && w != "job" && w != "jobs" {
				t.Errorf("%q is found as %s, want %s", w, found.resource, k.resource)
			}
		}
	}
}

// TestVerbsThatTakeNamesReadKinds checks that takesNames contains every verb that takes names of
// objects.
func TestVerbsThatTakeNamesReadKinds(t *testing.T) {
	// The arguments of these verbs are not only names of objects, or the objects are of any kind.
	other := []string{"get", "def show", "def render"}
	left := map[string]bool{}
	for name := range takesNames {
		left[name] = true
	}
	for _, cmd := range leaves(newRoot(silent())) {
		name := strings.TrimPrefix(cmd.CommandPath(), "lockstep ")
		_, rest, _ := strings.Cut(cmd.Use, " ")
		named := strings.Contains(rest, "WORKFLOW") || strings.HasPrefix(strings.Trim(rest, "["), "NAME") || strings.HasPrefix(strings.Trim(rest, "["), "NODE")
		if _, takes := takesNames[name]; takes != named && !slices.Contains(other, name) {
			t.Errorf("'lockstep %s': takes names %v, is among takesNames %v", cmd.Use, named, takes)
		}
		delete(left, name)
	}
	for name := range left {
		t.Errorf("there is no verb %s", name)
	}
}

// TestAnApplicationMayBeCalledLikeAKind checks a whole command: below 'lockstep app', a word that is
// also a kind is the name of an Application.
func TestAnApplicationMayBeCalledLikeAKind(t *testing.T) {
	for _, args := range []string{"app logs command --component command", "app exec secrets -- sh", "app delete job"} {
		root := newRoot(silent())
		root.SetArgs(append(strings.Fields(args), "--kubeconfig", filepath.Join(t.TempDir(), "none")))
		if i := strings.Index(args, " -- "); i > 0 {
			root.SetArgs(append(append(strings.Fields(args[:i]), "--kubeconfig", filepath.Join(t.TempDir(), "none"), "--"), "sh"))
		}
		var usage usageError
		if err := root.Execute(); err == nil || errors.As(err, &usage) || strings.Contains(err.Error(), "kind") {
			t.Errorf("lockstep %s without a cluster: %v", args, err)
		}
	}
}

func TestKindsInFullForTheServer(t *testing.T) {
	for args, want := range map[string]string{
		"jobs":              "jobs.batch.volcano.sh",
		"Job a job":         "jobs.batch.volcano.sh a job",
		"job/a job/b pod/c": "jobs.batch.volcano.sh/a jobs.batch.volcano.sh/b pod/c",
		"jobs,pods,queue":   "jobs.batch.volcano.sh,pods,queues.scheduling.volcano.sh",
		"jobs.batch":        "jobs.batch",
	} {
		if got := strings.Join(ourKinds(strings.Fields(args)), " "); got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}
