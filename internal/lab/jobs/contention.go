package jobs

import (
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
)

// contention says whether the creates of pods and their bindings slow each other down.
func (r *Report) contention() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "System", Key: true},
		{Title: "Writes for both", Help: "whether a pod is created with its node, or bound to it by a second write"},
		{Title: "CREATE/s", Right: true, Help: "pods created per second, from the first to the last"},
		{Title: "SCHEDULE/s beside", Right: true,
			Help: "pods that got nodes per second while others were still being created"},
		{Title: "after", Right: true,
			Help: "pods that got nodes per second after the last one was created; – if nearly all had nodes by then"},
		{Title: "Scheduled by then", Right: true,
			Help: "share of the pods that had nodes when the last pod was created"},
		{Title: "Correlation", Right: true,
			Help: "of the pods created and the pods scheduled in equal steps, with its 95 % confidence interval: " +
				"below 0 means that one goes down when the other goes up"},
		{Title: "Stalls", Right: true,
			Help: "gaps of more than a second between two creates, and between two pods that got nodes"},
		{Title: "Verdict"},
	}}
	s := page.Section{Title: "Do creates and bindings compete?",
		Note: "A system that creates a pod and binds it later writes twice, and both writes take their time from one server."}
	var sentences []string
	for _, run := range r.typical() {
		c := run.Contention
		row := []page.Cell{page.Text(run.Shape), run.cell()}
		if c == nil {
			row = append(row, page.Text("one write"), page.Text(perSecond(float64(run.Created)/max(run.CreateSeconds, 1e-3))), page.Text("the same"), page.Text("–"), page.Text("100 %"),
				page.Text("–"), stallsOf(0, run.Stalls.Count), page.Cell{Text: "nothing to compete", Tone: page.Strong})
			sentences = append(sentences, run.label+" creates pods with their nodes: nothing to compete")
		} else {
			row = append(row, page.Text("two writes"), page.Text(perSecond(c.CreatedPerSecond)), page.Text(perSecond(c.BoundDuring)), page.Text(after(c)),
				page.Textf("%.0f %%", 100*c.ScheduledDuring), page.Text(coefficient(c)), stallsOf(c.CreateStalls.Count, run.Stalls.Count), competes(c))
			sentences = append(sentences, run.label+" "+contends(c))
		}
		t.Rows = append(t.Rows, row)
		if run.Curves == nil {
			continue
		}
		created, scheduled := page.Rate("CREATE", run.Curves.Created, run.ScheduleSeconds), page.Rate("SCHEDULE", run.Curves.Scheduled, run.ScheduleSeconds)
		created.Color, created.Style, scheduled.Color = run.color, page.Dashed, run.color
		s.Charts = append(s.Charts, page.Chart{Title: run.ofRuns() + " " + run.Shape + ": pods created and scheduled per second", Unit: " s", Lines: []page.Line{created, scheduled}})
	}
	s.Tables = []page.Table{t}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// contends says in words what a contention is.
func contends(c *analyse.Contention) string {
	s := fmt.Sprintf("binds %s pods a second beside creates", perSecond(c.BoundDuring))
	if c.BoundAfter > 0 {
		s += fmt.Sprintf(" and %s after them", perSecond(c.BoundAfter))
	}
	if c.Steps >= 2 && c.Low < c.Up {
		s += ", correlation " + coefficient(c)
	}
	if c.Competes() {
		return s + ": they compete"
	}
	return s + ": they did not compete here"
}

func competes(c *analyse.Contention) page.Cell {
	if c.Competes() {
		return page.Cell{Text: "they compete", Tone: page.Warn}
	}
	return page.Text("not seen here")
}

// coefficient formats the correlation with its interval.
func coefficient(c *analyse.Contention) string {
	if c.Low == c.Up {
		return "–"
	}
	return fmt.Sprintf("%s (%s to %s)", signed(c.Correlation), signed(c.Low), signed(c.Up))
}

// signed formats a number between -1 and 1 with a proper minus sign.
func signed(x float64) string { return strings.Replace(fmt.Sprintf("%.2f", x), "-", "−", 1) }

func after(c *analyse.Contention) string {
	if c.BoundAfter == 0 {
		return "–"
	}
	return perSecond(c.BoundAfter)
}

func perSecond(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.1f", x)
	}
	return page.Thousands(int(x + 0.5))
}

func stallsOf(creates, schedules int) page.Cell {
	c := page.Textf("%d, %d", creates, schedules)
	if creates+schedules > 0 {
		c.Tone = page.Warn
	}
	return c
}
