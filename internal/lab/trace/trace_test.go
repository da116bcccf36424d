package trace

import (
	"bytes"
	"compress/gzip"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// The lines are made for these tests.
const (
	own = "arrival, pods, duration\n10,3,5.5\n# a comment\n\n4,1,0\n"
	swf = `; UnixStartTime: 0
1 100 5 60 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1
2 90 5 30 -1 -1 -1 8 -1 -1 1 1 1 1 1 1 -1 -1
3 120 5 -1 4 -1 -1 4 -1 -1 0 1 1 1 1 1 -1 -1
`
	alibabaTasks = `M1,2,j_1,1,Terminated,1000,1060,100,0.5
R2_1,3,j_1,1,Terminated,1060,1090,100,0.5
M1,5,j_2,1,Terminated,990,1000,50,0.1
M1,5,j_3,1,Running,1010,0,50,0.1
`
)

func TestParse(t *testing.T) {
	for text, want := range map[string]*Trace{
		own:          {Format: CSV, Jobs: []Job{{0, 1, 0}, {6, 3, 5.5}}},
		swf:          {Format: SWF, Jobs: []Job{{0, 8, 30}, {10, 4, 60}}, Skipped: 1},
		alibabaTasks: {Format: Alibaba, Jobs: []Job{{0, 5, 10}, {10, 5, 90}}, Skipped: 1},
	} {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
			t.Fatal(err)
		}
		for _, data := range []string{text, packed.String()} {
			got, err := Parse(strings.NewReader(data))
			if err != nil {
				t.Fatalf("%s: %v", want.Format, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", want.Format, diff)
			}
		}
	}
}

func TestTracesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is empty",
		"hello":                         "line 1: is no trace in a known format",
		header + "\n1,2":                "line 2: has 2 fields",
		header + "\n1,x,2":              `line 2: strconv.Atoi: parsing "x"`,
		header + "\nNaN,1,2":            `"NaN" is no time`,
		header + "\n1,0,2":              "want at least one pod",
		header + "\n1,1,-2":             "a duration that is not negative",
		header + "\n1,2000000,2":        "a job has 2000000 pods",
		header:                          "has no jobs",
		"; only a comment":              "has no jobs",
		"; x\n1 2 3":                    "line 2: has 3 fields, want 18",
		"M1,x,j_1,1,T,1000,1060,100,.5": `line 1: strconv.ParseFloat: parsing "x"`,
	} {
		if got, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %s", text, got, err, want)
		}
	}
}

// TestWhatIsWrittenIsReadAgain writes random traces.
func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := rapid.Custom(func(t *rapid.T) Job {
			ms := func(name string) float64 { return float64(rapid.IntRange(0, 1e7).Draw(t, name)) / 1e3 }
			return Job{Arrival: ms("arrival"), Pods: rapid.IntRange(1, 5000).Draw(t, "pods"), Duration: ms("duration")}
		})
		w := &Trace{Format: CSV}
		if err := w.finish(rapid.SliceOfN(job, 1, 20).Draw(t, "jobs")); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := w.Write(&text); err != nil {
			t.Fatal(err)
		}
		r, err := Parse(&text)
		if err != nil || len(r.Jobs) != len(w.Jobs) || r.Pods() != w.Pods() {
			t.Fatalf("%+v, %v", r, err)
		}
		for i, j := range r.Jobs {
			if math.Abs(j.Arrival-w.Jobs[i].Arrival) > 0.0011 || math.Abs(j.Duration-w.Jobs[i].Duration) > 0.0011 {
				t.Fatalf("%+v is read as %+v", w.Jobs[i], j)
			}
		}
		if most := r.Most(); most > r.Pods() || most < r.Jobs[0].Pods {
			t.Fatalf("%d pods at a time of %d", most, r.Pods())
		}
	})
}

func TestTheMostAtATime(t *testing.T) {
	w := Trace{Jobs: []Job{{0, 4, 10}, {5, 3, 5}, {10, 2, 1}, {10, 9, 0}}}
	if most := w.Most(); most != 11 {
		t.Errorf("%d", most)
	}
}

func TestRecord(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(at float64, verb, resource, sub, name, node string, code int) analyse.Event {
		stamp := start.Add(time.Duration(at * float64(time.Second)))
		return analyse.Event{Time: stamp, Received: stamp, Verb: verb, Resource: resource, Sub: sub, Namespace: "n", Name: name, Node: node, Code: code}
	}
	got, err := Record([]analyse.Event{
		event(0, "create", "jobs.batch", "", "a", "", 201), event(1, "create", "pods", "", "a-1", "n1", 201), event(2, "create", "pods", "", "a-2", "", 201),
		event(3, "create", "pods", "binding", "a-2", "n1", 201), event(0.5, "create", "pods", "", "a-3", "n1", 403),
		event(8, "delete", "jobs.batch", "", "a", "", 200), event(9, "delete", "pods", "", "a-1", "", 200),
		event(2.5, "create", "jobs.batch", "", "b", "", 201), event(3, "create", "pods", "", "b-1", "n1", 201),
		event(4, "create", "jobs.batch", "", "empty", "", 201), event(4, "create", "pods", "", "other", "n1", 201),
	}, "jobs.batch", func(pod string) (string, bool) {
		job, _, ok := strings.Cut(pod, "-")
		return job, ok
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Trace{Format: "events", Jobs: []Job{{0, 2, 5}, {2.5, 1, 0}}, Skipped: 1}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRecordOfPodsThatEnd has jobs whose pods end by themselves, as an audit log and as a watch show
// it: they last as long as the longest of their pods ran, whenever what is left of them is deleted.
func TestRecordOfPodsThatEnd(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(at float64, verb, sub, name, node string) analyse.Event {
		stamp := start.Add(time.Duration(at * float64(time.Second)))
		e := analyse.Event{Time: stamp, Received: stamp, Verb: verb, Resource: "pods", Sub: sub, Namespace: "n", Name: name, Node: node, Code: 200}
		if len(name) == 1 {
			e.Resource = "jobs.batch"
		}
		return e
	}
	ends := func(at float64, name string) analyse.Event {
		e := event(at, "patch", "status", name, "")
		e.Ended = true
		return e
	}
	got, err := Record([]analyse.Event{
		// The second pod waits for the place of the first. A status of a pod that runs is no end.
		event(0, "create", "", "a", ""), event(1, "create", "", "a-1", "n1"), event(2, "patch", "status", "a-1", ""), ends(6, "a-1"),
		event(7, "create", "", "a-2", "n1"), ends(11, "a-2"), event(60, "delete", "", "a", ""), event(60, "delete", "", "a-1", ""),
		// One that is bound after its creation, which the server answers later, and tried twice.
		event(2, "create", "", "b", ""), event(3, "create", "binding", "b-1", "n1"), event(3.1, "create", "", "b-1", ""), ends(4, "b-1"),
		event(5, "create", "", "b-1", "n2"), ends(8, "b-1"),
		event(4, "create", "", "c", ""), event(4, "create", "", "c-1", "n1"), event(4.5, "finish", "", "c-1", ""),
	}, "jobs.batch", func(pod string) (string, bool) {
		job, _, ok := strings.Cut(pod, "-")
		return job, ok
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Trace{Format: "events", Jobs: []Job{{0, 2, 5}, {2, 1, 3}, {4, 1, 0.5}}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
