package objects

import (
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/names"
)

func TestKindsInFullForTheServer(t *testing.T) {
	for args, want := range map[string]string{
		"jobs":              "jobs.batch.volcano.sh",
		"Job a job":         "jobs.batch.volcano.sh a job",
		"job/a job/b pod/c": "jobs.batch.volcano.sh/a jobs.batch.volcano.sh/b pod/c",
		"jobs,pods,queue":   "jobs.batch.volcano.sh,pods,queues.scheduling.volcano.sh",
		"jobs.batch":        "jobs.batch",
	} {
		if got := strings.Join(names.InFull(strings.Fields(args)), " "); got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}
