package jobs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/stats"
	"lockstep.dev/lockstep/internal/lab/system"
)

// clientLimits says what the client limits of stock Kubernetes cost.
func (r *Report) clientLimits() phenomenon {
	c := page.Chart{Title: "Pods scheduled per second over the QPS of kube-controller-manager and kube-scheduler", Unit: " QPS", Log: true}
	s := page.Section{Title: "What does a client's own limit cost?",
		Note: "A client of the API server may limit its requests to so many a second (QPS) after a number of them at once (burst). Nothing else differs."}
	var sentences []string
	for _, g := range r.groups() {
		limited := page.Line{Name: "limited, " + g.shape, Points: true, Color: len(c.Lines)}
		var unlimited, lowest, highest *variant
		for _, v := range g.variants {
			limit, ok := v.runs[0].Settings[system.ClientLimit]
			if !ok || len(v.times) == 0 {
				continue
			}
			qps, err := strconv.ParseFloat(strings.Split(limit, "/")[0], 64)
			if err != nil {
				unlimited = v
				continue
			}
			if lowest == nil || len(limited.X) > 0 && qps < limited.X[0] {
				lowest = v
			}
			highest = v
			limited.X, limited.Y = append(limited.X, qps), append(limited.Y, v.rate())
		}
		if lowest == nil {
			continue
		}
		c.Lines = append(c.Lines, limited)
		text := fmt.Sprintf("%s: %s pods a second with %s", lowest.runs[0].System, perSecond(lowest.rate()), lowest.runs[0].Settings[system.ClientLimit])
		if highest != lowest {
			text += fmt.Sprintf(", %s with %s", perSecond(highest.rate()), highest.runs[0].Settings[system.ClientLimit])
		}
		if unlimited != nil {
			c.Lines = append(c.Lines, page.Line{Name: "without limit", Color: limited.Color, Style: page.Dashed,
				X: []float64{limited.X[0], limited.X[len(limited.X)-1]}, Y: []float64{unlimited.rate(), unlimited.rate()}})
			text += fmt.Sprintf(", %s without limit: the limit costs a factor of %s", perSecond(unlimited.rate()), page.Factor(unlimited.rate()/lowest.rate()))
			if unlimited.rate() < 1.1*lowest.rate() {
				text = fmt.Sprintf("%s: the limit costs nothing here", strings.Split(text, ": the limit")[0])
			}
		}
		sentences = append(sentences, text)
	}
	if len(c.Lines) > 0 {
		s.Charts = []page.Chart{c}
	}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// rate returns the mean of the pods scheduled per second.
func (v *variant) rate() float64 {
	var rates []float64
	for _, run := range v.runs {
		if run.complete() && run.ScheduleSeconds > 0 {
			rates = append(rates, float64(run.Scheduled)/run.ScheduleSeconds)
		}
	}
	return stats.Of(rates).Mean
}

// foreignPods says how fast pods are scheduled that others create.
func (r *Report) foreignPods() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "objects x pods of each"}, {Title: "System", Key: true},
		{Title: "CREATE/s", Right: true, Help: "pods created per second, by their controller or by the client"},
		{Title: "Last created", Right: true,
			Help: "from the arrival of the first object until the last pod was created"},
		{Title: "Last scheduled", Right: true, Help: "and until the last pod had a node"},
		{Title: "Behind", Right: true, Help: "how long after the last creation the last pod had a node"},
		{Title: "Most pending", Right: true, Help: "pods at a time that existed without a node"},
		{Title: "Bindings", Right: true, Help: "writes that bind pods, of all attempts"},
	}}
	s := page.Section{Title: "How fast are pods of others scheduled?",
		Note: "These pods exist before a scheduler sees them: there is no way around a second write for each."}
	var loads []string
	behind := map[string][]string{}
	for _, run := range r.typical() {
		created := 0.0
		if run.CreateSeconds > 0 {
			created = float64(run.Created) / run.CreateSeconds
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(run.Shape), run.cell(), page.Text(perSecond(created)), page.Text(page.Seconds(run.CreateSeconds)),
			{Text: page.Seconds(run.ScheduleSeconds), Tone: page.Strong}, page.Text(page.Seconds(max(0, run.ScheduleSeconds-run.CreateSeconds))),
			page.Text(page.Thousands(run.PendingMax)), page.Text(page.Thousands(run.Writes["pods/binding"]))})
		if !slices.Contains(loads, run.Shape) {
			loads = append(loads, run.Shape)
		}
		behind[run.Shape] = append(behind[run.Shape], page.Seconds(max(0, run.ScheduleSeconds-run.CreateSeconds))+" ("+run.label+")")
	}
	s.Tables = []page.Table{t}
	var sentences []string
	for _, load := range loads {
		sentences = append(sentences, fmt.Sprintf("of %s the last has a node %s after it is created", load, strings.Join(behind[load], ", ")))
	}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// enqueue says how many pods wait in the API server while the nodes are full.
func (r *Report) enqueue() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "System", Key: true},
		{Title: "Most waiting", Right: true,
			Help: "pods at a time whose job existed and that had no node, whether they existed or not"},
		{Title: "Pending pods", Right: true, Help: "the most of them that existed as pods in the API server at a time"},
		{Title: "API server CPU", Right: true}, {Title: "etcd CPU", Right: true}, {Title: "Writes/pod", Right: true},
		{Title: "API server memory", Right: true, Help: "the most that it ever had in the run"}, {Title: "Verdict"},
	}}
	s := page.Section{Title: "Where do pods wait that do not fit?",
		Note: "The jobs want more than the nodes hold, and pods end after a while. Pods that wait as objects cost writes, memory and watch events."}
	c := page.Chart{Title: "Pods in the API server without a node", Unit: " s"}
	var sentences []string
	for _, run := range r.typical() {
		verdict := page.Cell{Text: "they wait as pods", Tone: page.Warn}
		sentence := fmt.Sprintf("up to %s of %s waiting pods are in the API server at a time", page.Thousands(run.PendingMax), page.Thousands(run.WaitingMax))
		if run.PendingMax == 0 {
			sentence = fmt.Sprintf("none of up to %s waiting pods is in the API server", page.Thousands(run.WaitingMax))
		}
		// Pods that are bound by a second write are pending for a moment.
		if run.PendingMax*10 < run.WaitingMax {
			verdict = page.Cell{Text: "their jobs wait", Tone: page.Strong}
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(run.Shape), run.cell(), page.Text(page.Thousands(run.WaitingMax)), {Text: page.Thousands(run.PendingMax), Tone: page.Strong},
			page.Textf("%.1f s", run.CPUSeconds["apiserver"]), page.Textf("%.1f s", run.CPUSeconds["etcd"]), page.Text(run.writesPerPod()),
			page.Textf("%.0f MiB", run.PeakRSSMiB["apiserver"]), verdict})
		sentences = append(sentences, run.label+": "+sentence)
		if run.Curves != nil && run.PendingMax > 0 {
			l := page.Cumulative(run.ofRuns(), run.Curves.Pending)
			l.Color = run.color
			c.Lines = append(c.Lines, l)
		}
	}
	s.Tables = []page.Table{t}
	if len(c.Lines) > 0 {
		s.Charts = []page.Chart{c}
	}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}
