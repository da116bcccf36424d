package page

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

func sample() *Page {
	return &Page{Title: "Batch | jobs", Version: "v1", Time: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Verdict: "5.1 times as fast, <nothing> lost",
		Warnings: []string{"the machine was busy"}, Problems: []Problem{{"a #2", "job_1 is lost"}},
		Sections: []Section{{Title: "Results", Tables: []Table{{Columns: []Column{{Title: "System", Key: true}, {Title: "Time", Right: true, Help: "until <all> ran"}},
			Rows: [][]Cell{{{Text: "lockstep", Color: 1}, {Text: "1.20 s", Tone: Strong, Bar: &Bar{Width: 20, Mark: 10}}}, {Text("kube|rnetes, x"), Count(1200, Bad)}}}},
			Charts:  []Chart{{Title: "Curve", Unit: " s", Lines: []Line{Cumulative("</script>", analyse.Curve{AtSeconds: []float64{1}, Count: []int{3}})}}},
			Details: []Detail{{Title: "More", Tables: []Table{Pairs("Figures", Pair{"p50", "3 ms"})}}}}},
		Hardware: []Pair{{"CPU", "2"}}, Settings: Settings(map[string]any{"nodes": 10, "shapes": []string{"1x1", "2x2"}, "args": []string(nil)})}
}

func TestMarkdown(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Markdown(&b); err != nil {
		t.Fatal(err)
	}
	const want = `## Batch \| jobs

**5.1 times as fast, &lt;nothing> lost**

- the machine was busy
- a #2: job\_1 is lost

Results

| System | Time |
| --- | ---: |
| lockstep | 1.20 s |
| kube\|rnetes, x | 1,200 |

CPU: 2
args: none; nodes: 10; shapes: 1x1 2x2

lockstep v1, 2026-01-02 03:04 UTC
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestHTML(t *testing.T) {
	var b bytes.Buffer
	if err := sample().HTML(&b); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	if m := regexp.MustCompile(`(?i)(src|href)\s*=|url\(\s*["']?(https?:)?//|@import|fetch\(|XMLHttpRequest`).FindAllString(html, -1); m != nil {
		t.Errorf("the page may load something: %q", m)
	}
	for _, want := range []string{"5.1 times as fast, &lt;nothing&gt; lost", "job_1 is lost", `title="until &lt;all&gt; ran"`, `data-label="Time"`,
		"width:20.00%", `"x":[0,1],"y":[0,3]`, "Permission is hereby granted"} {
		if !strings.Contains(html, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	// The verdict comes first, then what went wrong, and the hardware and the settings are last.
	order := []string{"<h1", "What went wrong", "Read the figures", "<h2>Results", "<h2>Hardware", "<h2>Settings"}
	at := 0
	for _, text := range order {
		i := strings.Index(html, text)
		if i < at {
			t.Errorf("%q is not where it should be", text)
		}
		at = i
	}
	if details := strings.Index(html, "<details"); details < strings.Index(html, "job_1 is lost") {
		t.Error("a violation is folded away")
	}
}

func TestRate(t *testing.T) {
	curve := analyse.Curve{AtSeconds: []float64{0.5, 11.5, 12.6}, Count: []int{10, 30, 66}}
	for sentence, c := range map[string]struct {
		longest float64
		want    Line
	}{
		"whole seconds; of the last only the part that passed counts": {48, Line{Points: true, X: []float64{0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5},
			Y: []float64{10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 60}}},
		"enough steps beside a much longer curve; a last part that is too short to tell is left out": {2300,
			Line{Points: true, X: []float64{1, 3, 5, 7, 9, 11}, Y: []float64{5, 0, 0, 0, 0, 10}}},
	} {
		if diff := cmp.Diff(c.want, Rate("", curve, c.longest)); diff != "" {
			t.Errorf("%s: %s", sentence, diff)
		}
	}
	if got := Rate("", analyse.Curve{}, 1); len(got.X) > 0 {
		t.Error(got)
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Thousands(1234567): "1,234,567", Thousands(12): "12", Plural(1, "pod"): "1 pod", Plural(2000, "pod"): "2,000 pods",
		Ms(12): "12 ms", Ms(1234): "1.23 s", Seconds(12.34): "12.3 s",
		Range([]float64{1.04, 1.04}, "%.1f"): "1.0", Range([]float64{2, 1}, "%.0f"): "1 to 2",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
