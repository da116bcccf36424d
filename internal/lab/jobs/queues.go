package jobs

import (
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
)

// fairWithin is the difference between a share and what was deserved up to which shares count as
// fair; 1 is all places.
const fairWithin = 0.05

// queues says which shares of the places the queues had while all wanted more.
func (r *Report) queues() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "System", Key: true}, {Title: "Queue", Key: true}, {Title: "Weight", Right: true},
		{Title: "Deserved", Right: true, Help: "the queue's weight divided by the sum of all"},
		{Title: "Share", Right: true,
			Help: "of the places that pods had, over the time in which all queues wanted more"},
		{Title: "Difference", Right: true, Help: "in percentage points"},
		{Title: "Job to node, p50", Right: true, Help: "from a job's creation until its pods had nodes"},
		{Title: "p99", Right: true},
		{Title: "Last pod after", Right: true, Help: "when the queue's last pod got a node"},
	}}
	s := page.Section{Title: "Who has the places?",
		Note: "Each tenant submits the same jobs, more than the nodes hold, one tenant after the other. Pods end, and others get their places. " +
			"Shares count from when a first generation of pods has ended until a queue has no pod left that waits."}
	var sentences []string
	for _, run := range r.typical() {
		if len(run.Parts) < 2 {
			continue
		}
		if run.Shares == nil {
			sentences = append(sentences, run.label+": there was no time in which all queues wanted more")
		}
		if run.Shares != nil {
			sentences = append(sentences, run.label+": "+sharesOf(run.Shares))
		}
		for i, p := range run.Parts {
			cell, name := run.cell(), p.Name
			row := []page.Cell{cell, page.Text(name)}
			if run.Shares == nil {
				row = append(row, page.Text("–"), page.Text("–"), page.Text("–"), page.Text("–"))
			} else {
				q := run.Shares.Queues[i]
				difference := page.Text(strings.Replace(fmt.Sprintf("%+.1f", 100*(q.Share-q.Deserved)), "-", "−", 1))
				if max(q.Share-q.Deserved, q.Deserved-q.Share) > fairWithin {
					difference.Tone = page.Warn
				}
				row = append(row, page.Textf("%d", q.Weight), percent(q.Deserved), page.Cell{Text: percent(q.Share).Text, Tone: page.Strong}, difference)
			}
			t.Rows = append(t.Rows, append(row, page.Text(page.Ms(p.LatencyMs.P50)), page.Text(page.Ms(p.LatencyMs.P99)), page.Text(page.Seconds(p.LastSeconds))))
		}
		if c, ok := run.places(); ok {
			s.Charts = append(s.Charts, c)
		}
	}
	s.Tables = []page.Table{t}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// places is the chart of the places of each queue over time, with what each deserves.
func (t *typical) places() (page.Chart, bool) {
	if t.Curves == nil || len(t.Curves.Held) != len(t.Parts) {
		return page.Chart{}, false
	}
	c := page.Chart{Title: t.ofRuns() + ": places of each queue, and what it deserves (dashed, while all want more)", Unit: " s"}
	for i, p := range t.Parts {
		l := page.Cumulative(p.Name, t.Curves.Held[i])
		l.Color = i
		c.Lines = append(c.Lines, l)
		if t.Shares == nil {
			continue
		}
		due := analyse.Round(t.Shares.Queues[i].Deserved*t.Shares.Places, 1)
		c.Lines = append(c.Lines, page.Line{Name: p.Name + " deserves", Color: i, Style: page.Dashed,
			X: []float64{t.Shares.FromSeconds, t.Shares.UntilSeconds}, Y: []float64{due, due}})
	}
	return c, true
}

// sharesOf says in words what the shares were.
func sharesOf(s *analyse.Shares) string {
	var weights, shares, deserved []string
	for _, q := range s.Queues {
		weights, shares = append(weights, fmt.Sprint(q.Weight)), append(shares, fmt.Sprintf("%.0f", 100*q.Share))
		deserved = append(deserved, fmt.Sprintf("%.0f", 100*q.Deserved))
	}
	verdict := fmt.Sprintf("fair within %.1f points", 100*s.Deviation)
	if s.Deviation > fairWithin {
		verdict = fmt.Sprintf("unfair by up to %.0f points", 100*s.Deviation)
	}
	return fmt.Sprintf("tenants of weights %s have %s %% of the places (deserved: %s), %s", strings.Join(weights, ":"), strings.Join(shares, ", "),
		strings.Join(deserved, ", "), verdict)
}

func percent(x float64) page.Cell { return page.Textf("%.1f %%", 100*x) }
