package names

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/command"
)

func TestNamesAreToldFromKinds(t *testing.T) {
	served := func(word string) bool { return word == "widget" || word == "widgets" }
	many, one := nameArgs{kind: Workflow}, nameArgs{kind: Workflow, first: true}
	app, appOne := nameArgs{kind: Application, below: true}, nameArgs{kind: Application, below: true, first: true}
	for _, c := range []struct {
		names nameArgs
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

		{nameArgs{kind: Application}, "app shop", "shop", false},
		{nameArgs{kind: Application}, "job shop", "another kind", true},
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

		{nameArgs{kind: CronWorkflow}, "cwf/nightly", "nightly", false},
		{nameArgs{kind: CronWorkflow}, "wf/nightly", "workflows.argoproj.io", true},
		{nameArgs{kind: Node}, "node/real-1 real-2", "real-1 real-2", false},
	} {
		got, err := c.names.read(strings.Fields(c.args), served)
		var usage command.UsageError
		switch {
		case c.wrong && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %q: got %q, %v, want an error of usage with %q", c.names.kind.singular, c.args, got, err, c.want)
		case !c.wrong && (err != nil || strings.Join(got, " ") != c.want):
			t.Errorf("%s %q: got %q, %v, want %q", c.names.kind.singular, c.args, got, err, c.want)
		}
	}
}

// TestNoWordStandsForTwoKinds checks that each word names one kind only. The exceptions are job and
// cronjob, kinds of both Kubernetes and Lockstep.
func TestNoWordStandsForTwoKinds(t *testing.T) {
	both := []string{"job", "jobs", "cronjob", "cronjobs"}
	seen := map[string]string{}
	for _, k := range knownKinds {
		for _, w := range append(slices.Clone(k.short), k.resource, k.plural(), k.singular) {
			if other := seen[w]; other != "" && other != k.resource && !slices.Contains(both, w) {
				t.Errorf("%q stands for %s and %s", w, other, k.resource)
			}
			seen[w] = k.resource
			if found, ok := knownKind(w); !ok || found.resource != k.resource && !slices.Contains(both, w) {
				t.Errorf("%q is found as %s, want %s", w, found.resource, k.resource)
			}
		}
	}
}
