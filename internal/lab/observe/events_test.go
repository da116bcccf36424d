package observe

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// TestEventsAreReadAsTheyWereWritten writes events with all fields, also with texts that a CSV quotes.
func TestEventsAreReadAsTheyWereWritten(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	events := []analyse.Event{
		{Time: at, Received: at.Add(-time.Millisecond), Actor: "manager", Verb: "create", Resource: "pods", Namespace: "bench", Name: "a-0", Node: "n", Code: 201},
		{Time: at.Add(time.Second), Received: at, Actor: "nodes", Verb: "patch", Resource: "pods", Sub: "status", Namespace: "bench", Name: "a-0", Ended: true, Code: 200},
		{Time: at, Received: at, Verb: "create", Resource: "jobs.batch.volcano.sh", Code: 422, Cause: "spec.tasks[0]: \"x\", and\nmore"},
	}
	var file bytes.Buffer
	if err := WriteEvents(&file, events); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(file.String(), EventsHeader+"\n2026-01-02T03:04:05.678901Z,") {
		t.Errorf("the file begins with %.200q", file.String())
	}
	got, err := ReadEvents(&file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(events, got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	for text, want := range map[string]string{
		"":                  "",
		"time,name\n":       "wrong number of fields",
		EventsHeader + "\n": "",
		strings.Replace(EventsHeader, "node", "host", 1) + "\n":            "line 1: the columns are not",
		EventsHeader + "\nyesterday,,,,,,,,,true,200,\n":                   "line 2: parsing time",
		EventsHeader + "\n2026-01-02T03:04:05Z,2026-01-02T03:04:05Z,a,b\n": "line 2",
	} {
		_, err := ReadEvents(strings.NewReader(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}
