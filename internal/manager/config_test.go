package manager

import (
	"testing"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/workflow/settings"
)

func TestTheLabelsOfTheArchiveAreCheckedAtTheStart(t *testing.T) {
	if _, err := New(Config{REST: &rest.Config{Host: "http://none"}, ArchiveLabels: "team in ("}); err == nil {
		t.Error("a selector that cannot be parsed is accepted")
	}
}

// TestTheSourceOfAConfiguredArchive checks that names and passwords with special characters become parts
// of the source.
func TestTheSourceOfAConfiguredArchive(t *testing.T) {
	p := &settings.Persistence{NodesTable: "argo_nodes", ClusterName: "a&b", Migrate: true, Connection: settings.Connection{
		Scheme: "postgres", Host: "::1", Port: 5433, Database: "argo", Parameters: map[string]string{"sslmode": "require"}}}
	want := "argo+postgres://u:p%2F%3F%40@[::1]:5433/argo?clustername=a%26b&instanceid=blue&migrate=true&nodestable=argo_nodes&sslmode=require"
	if got := archiveSource(p, "blue", connectionURL(&p.Connection, "u", "p/?@")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
