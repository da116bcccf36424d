package engine

import (
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/workflow/template"
)

func TestCreationTime(t *testing.T) {
	g := &globals{Map: template.Map{"workflow.name": "w"}, created: time.Date(2024, 12, 30, 15, 4, 5, 67_000_000, time.UTC)}
	for name, want := range map[string]string{
		"": "2024-12-30T15:04:05Z", ".RFC3339": "2024-12-30T15:04:05Z", ".Y": "2024", ".m": "12", ".d": "30", ".H": "15", ".I": "03", ".p": "PM",
		".M": "04", ".S": "05", ".y": "24", ".j": "365", ".a": "Mon", ".B": "December", ".V": "01", ".G": "2025", ".u": "1", ".w": "1",
		".s": "1735571045", ".F": "2024-12-30", ".T": "15:04:05", ".C": "20", ".l": " 3", ".U": "52", ".W": "53", ".f": "067000", ".L": "067", ".Z": "UTC",
	} {
		if got, found := g.Lookup("workflow.creationTimestamp" + name); got.Text != want || !found {
			t.Errorf("%q: %q, want %q", name, got.Text, want)
		}
	}
	for prefix, want := range map[string]int{"workflow.name": 1, "workflow.": 43, "": 43, "workflow.creationTimestamp.": 41, "workflow.creationTimestamp.RFC": 1, "inputs.": 0} {
		n := 0
		g.Walk(prefix, func(string, template.Value) { n++ })
		if n != want {
			t.Errorf("%d variables begin with %q, want %d", n, prefix, want)
		}
	}
}
