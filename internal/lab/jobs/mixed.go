package jobs

import (
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
)

// blockedFrom is the part of the time of the jobs ahead by which the median wait has to be longer than
// that of the jobs alone to count as a wait for their end.
const blockedFrom = 0.5

// behind are the results of the two parts of a run: the jobs ahead, and the jobs behind them.
func (t *typical) behind() (ahead, behind *analyse.PartResult, ok bool) {
	if len(t.Parts) != 2 || t.Shares != nil {
		return nil, nil, false
	}
	return &t.Parts[0], &t.Parts[1], true
}

// mixed says how long small jobs wait behind a large one.
func (r *Report) mixed() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each: those ahead + those behind"},
		{Title: "System", Key: true},
		{Title: "Wait behind, p50", Right: true, Help: "from a small job's creation until its pods had nodes"},
		{Title: "p99", Right: true}, {Title: "Longest", Right: true},
		{Title: "Wait alone, p50", Right: true, Help: "the same, of the same jobs with nothing ahead of them"},
		{Title: "Job ahead took", Right: true,
			Help: "from the arrival of the first job until the last pod of those ahead had a node"},
		{Title: "Longer by, of that", Right: true,
			Help: "how much longer the median wait is than alone, as a share of the time of the job ahead. Jobs " +
				"that wait for its end have about 100 %"},
		{Title: "Verdict"},
	}}
	s := page.Section{Title: "How long do small jobs wait behind a large one?",
		Note: "The nodes have room for all. Who waits here waits for the turn of others, not for capacity."}
	runs := r.typical()
	var sentences []string
	for i := range runs {
		run := &runs[i]
		ahead, behind, ok := run.behind()
		if !ok {
			continue
		}
		alone, aloneMs := page.Text("–"), 0.0
		for k := range runs {
			if runs[k].Shape == behind.Name && runs[k].label == run.label {
				aloneMs = runs[k].LatencyMs.P50
				alone = page.Text(page.Ms(aloneMs))
			}
		}
		share := max(0, behind.LatencyMs.P50-aloneMs) / 1e3 / max(ahead.LastSeconds, 1e-3)
		verdict, word := page.Cell{Text: "they pass it", Tone: page.Strong}, "they pass it"
		if share >= blockedFrom {
			verdict, word = page.Cell{Text: "they wait for it", Tone: page.Warn}, "they wait for its end"
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(run.Shape), run.cell(), {Text: page.Ms(behind.LatencyMs.P50), Tone: page.Strong},
			page.Text(page.Ms(behind.LatencyMs.P99)), page.Text(page.Ms(behind.MaxMs)), alone, page.Text(page.Seconds(ahead.LastSeconds)),
			page.Textf("%.0f %%", 100*share), verdict})
		sentences = append(sentences, fmt.Sprintf("%s: %s of %s wait %s (p99 %s) behind %s, which %s %s: %s", run.label, page.Plural(behind.Jobs, "job"),
			page.Plural(behind.Pods/max(1, behind.Jobs), "pod"), page.Ms(behind.LatencyMs.P50), page.Ms(behind.LatencyMs.P99), jobsOf(ahead),
			takes(ahead.Jobs), page.Seconds(ahead.LastSeconds), word))
		if run.Curves == nil || len(run.Curves.Held) != 2 {
			continue
		}
		c := page.Chart{Title: run.ofRuns() + ": percent of the pods that have nodes", Unit: " s"}
		for k, p := range []*analyse.PartResult{ahead, behind} {
			l := page.Cumulative([]string{"ahead: ", "behind: "}[k]+p.Name, run.Curves.Held[k])
			for n := range l.Y {
				l.Y[n] = analyse.Round(100*l.Y[n]/float64(max(1, p.Pods)), 1)
			}
			l.Color, l.Style = run.color, []string{page.Dashed, ""}[k]
			c.Lines = append(c.Lines, l)
		}
		s.Charts = append(s.Charts, c)
	}
	s.Tables = []page.Table{t}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// jobsOf names the jobs of a part: a job of 10,000 pods.
func jobsOf(p *analyse.PartResult) string {
	each := page.Plural(p.Pods/max(1, p.Jobs), "pod")
	if p.Jobs == 1 {
		return "one of " + each
	}
	return page.Thousands(p.Jobs) + " of " + each
}

func takes(jobs int) string {
	if jobs == 1 {
		return "takes"
	}
	return "take"
}
