package jobs

import (
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/stats"
)

// collapseFrom is the share of refused creates from which a way of admission collapses: nearly all
// creates fail, and the system only repeats them.
const collapseFrom = 0.9

// admits says what each way of admission costs, and whether creates failed because a webhook was too
// slow.
func (r *Report) admits() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "Admission", Key: true, Help: "what admits a pod, and the work of one review"},
		{Title: "Time", Right: true, Help: "until every pod has a node; of several runs the mean ± its 95 % confidence interval"},
		{Title: "× no admission", Right: true, Help: "the time, compared with that of the same load that nothing admits"},
		{Title: "× CEL rules", Right: true, Help: "the time, compared with that of the same load under CEL rules that check the same"},
		{Title: "One review", Right: true, Help: "the mean time that the API server waited for one answer of a webhook. A pod needs two: it is changed and checked"},
		{Title: "Webhook CPU", Right: true}, {Title: "API server CPU", Right: true},
		{Title: "Creates refused", Right: true, Help: "creates of pods that the API server refused, in all runs, and how many of them because a webhook took longer than its time-out"},
		{Title: "Pods with nodes", Right: true, Help: "in the end"},
		{Title: "Verdict"},
	}}
	s := page.Section{Title: "What does admission cost, and do creates fail because of it?",
		Note: "CEL rules run in the API server. A webhook is asked twice for each pod, over TLS, and computes on the machine's own CPUs. " +
			"If many creates wait for a slow webhook at once, each waits longer than its time-out, and the API server refuses it."}
	var sentences []string
	for _, g := range r.groups() {
		for _, system := range r.systems() {
			said := admissionSaid{}
			var variants []*variant
			for _, v := range g.variants {
				if v.runs[0].System == system {
					variants = append(variants, v)
				}
			}
			for _, v := range variants {
				none, cel := admittedBy(variants, v, ""), admittedBy(variants, v, "cel")
				row := v.admission(none, cel, &said)
				if len(r.systems()) > 1 {
					row[0].Text = system + ", " + row[0].Text
				}
				if strings.HasSuffix(r.called(v.runs[0]), gangSuffix) {
					row[0].Text += gangSuffix
				}
				t.Rows = append(t.Rows, append([]page.Cell{page.Text(g.shape)}, row...))
			}
			if text := said.String(); text != "" {
				sentences = append(sentences, system+": "+text)
			}
		}
	}
	s.Tables = []page.Table{t}
	return phenomenon{whole: true, sentence: strings.Join(sentences, ". "), sections: []page.Section{s}}
}

// admittedBy returns the variant that differs from v in its admission alone, or nil.
func admittedBy(variants []*variant, v *variant, admission string) *variant {
	for _, other := range variants {
		run := other.runs[0]
		if run.Settings[admissionSetting] == admission && run.Gang == v.runs[0].Gang {
			return other
		}
	}
	return nil
}

// admissionSaid is what the ways of admission cost one system, for a sentence.
type admissionSaid struct {
	cel      string
	webhooks []string
	// base is what the webhooks are compared with. creates are those with webhooks; late are the
	// refused ones that ran into a time-out.
	base                   string
	creates, refused, late int
}

func (s *admissionSaid) String() string {
	var parts []string
	if s.cel != "" {
		parts = append(parts, s.cel)
	}
	if len(s.webhooks) > 0 {
		parts = append(parts, s.base+" it takes "+strings.Join(s.webhooks, ", "))
		if s.refused == 0 {
			parts = append(parts, "no create was refused")
		} else {
			parts = append(parts, fmt.Sprintf("%s of %s creates with webhooks were refused (%s by time-out)", page.Thousands(s.refused), page.Thousands(s.creates), page.Thousands(s.late)))
		}
	}
	return strings.Join(parts, "; ")
}

// admission returns the row of a way of admission, and adds what it cost to said.
func (v *variant) admission(none, cel *variant, said *admissionSaid) []page.Cell {
	way := v.runs[0].Settings[admissionSetting]
	title := way
	switch way {
	case "":
		title = "none"
	case "cel":
		title = "CEL rules"
	}
	refused, late, creates, pods, scheduled := 0, 0, 0, 0, 0
	var reviews, webhook, server []float64
	for _, run := range v.runs {
		creates, pods, scheduled = creates+run.Writes["pods/create"], pods+run.Pods, scheduled+run.Scheduled
		for kind, n := range run.Refused {
			if strings.HasPrefix(kind, "pods/create ") {
				refused += n
			}
		}
		for cause, n := range run.Causes {
			if strings.HasPrefix(cause, "pods/create: ") && tookTooLong(cause) {
				late += n
			}
		}
		if run.Error != "" {
			continue
		}
		webhook, server = append(webhook, run.CPUSeconds["webhook"]), append(server, run.CPUSeconds["apiserver"])
		if run.Metrics != nil && run.Metrics.Server != nil {
			for _, h := range run.Metrics.Server.Webhooks {
				reviews = append(reviews, h.MeanMs)
			}
		}
	}
	time := page.Cell{Text: "not measured", Tone: page.Bad}
	if len(v.times) > 0 {
		time = page.Cell{Text: v.time().Format(page.Seconds), Tone: page.Strong}
	}
	mean := func(values []float64, format func(float64) string) page.Cell {
		if m := stats.Of(values).Mean; m > 0 {
			return page.Text(format(m))
		}
		return page.Text("–")
	}
	cpu := func(x float64) string { return fmt.Sprintf("%.1f s", x) }
	refusals := page.Count(refused, page.Warn)
	if refused > 0 {
		refusals.Text += fmt.Sprintf(" (%s by time-out)", page.Thousands(late))
	}
	had := page.Cell{Text: page.Thousands(scheduled)}
	if scheduled < pods {
		had = page.Cell{Text: fmt.Sprintf("%s of %s", page.Thousands(scheduled), page.Thousands(pods)), Tone: page.Bad}
	}
	verdict := page.Text("–")
	slowed := v.longer(none)
	if slowed.N == 0 {
		slowed = v.longer(cel)
	}
	switch {
	case way == "":
	case creates > 0 && float64(refused) >= collapseFrom*float64(creates):
		verdict = page.Cell{Text: "collapses", Tone: page.Bad}
	case refused > 0:
		verdict = page.Cell{Text: "refuses creates", Tone: page.Warn}
	case beyondNoise(slowed):
		verdict = page.Cell{Text: "slows down", Tone: page.Warn}
	case slowed.N > 0:
		verdict = page.Cell{Text: "costs little", Tone: page.Strong}
	}
	switch ratio := v.longer(cel); {
	case way == "cel" && v.longer(none).N > 0:
		said.cel = fmt.Sprintf("CEL rules take %s × the time without admission", page.Factor(v.longer(none).Mean))
	case strings.HasPrefix(way, "webhook"):
		said.creates, said.refused, said.late, said.base = said.creates+creates, said.refused+refused, said.late+late, "compared with CEL rules"
		if ratio.N == 0 {
			ratio, said.base = v.longer(none), "compared with no admission"
		}
		if ratio.N > 0 {
			said.webhooks = append(said.webhooks, fmt.Sprintf("%s × with %s", page.Factor(ratio.Mean), strings.Replace(way, ", time-out ", " and time-out ", 1)))
		}
	}
	return []page.Cell{{Text: title, Color: 1 + v.color}, time, times(v.longer(none)), times(v.longer(cel)), mean(reviews, page.Ms), mean(webhook, cpu), mean(server, cpu),
		refusals, had, verdict}
}

// longer returns how many times the time of base the variant takes; N is 0 if one was not measured.
func (v *variant) longer(base *variant) stats.Ratio {
	if base == nil || base == v {
		return stats.Ratio{}
	}
	return base.timesAsFast(v)
}

// times formats how many times as long something takes.
func times(r stats.Ratio) page.Cell {
	switch {
	case r.N == 0:
		return page.Text("–")
	case r.N == 1:
		return page.Text(page.Factor(r.Mean))
	}
	return page.Textf("%s (%s to %s)", page.Factor(r.Mean), page.Factor(r.Low), page.Factor(r.Up))
}

// tookTooLong reports whether the server refused a write because a webhook, or the whole request, took
// longer than its time-out. The address of a webhook has the word timeout whatever the cause.
func tookTooLong(cause string) bool {
	for _, sign := range []string{"deadline exceeded", "Client.Timeout exceeded", "did not complete within"} {
		if strings.Contains(cause, sign) {
			return true
		}
	}
	return false
}

// beyondNoise reports whether a ratio of times is so far above 1 that the noise of the machine is not
// the cause: a single pair of equal runs may differ by a third.
func beyondNoise(r stats.Ratio) bool {
	if r.N == 1 {
		return r.Mean >= 4.0/3
	}
	return r.Mean >= 1.15 && r.Differs()
}
