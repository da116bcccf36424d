package jobs

import (
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/stats"
	"lockstep.dev/lockstep/internal/lab/system"
)

// verdict says in one sentence how fast the first system was, compared with each other system and
// with the floor, and whether anything was lost.
func (r *Report) verdict() string {
	if len(r.Runs) == 0 {
		return "nothing was measured"
	}
	subject, parts := r.Runs[0].System, r.comparisons()
	valley := r.valley(subject)
	if valley == "" && len(parts) == 0 {
		valley = r.alone(subject)
	}
	if valley != "" {
		parts = append(parts, valley)
	}
	return subject + ": " + strings.Join(append(parts, r.bounds()...), ", ")
}

// comparisons compares the first system with each other one.
func (r *Report) comparisons() (parts []string) {
	systems := r.systems()
	for _, peer := range systems[1:] {
		if s := r.comparison(systems[0], peer); s != "" {
			parts = append(parts, s)
		}
	}
	return parts
}

// bounds compares the first system with its floor, and says whether anything was lost.
func (r *Report) bounds() (parts []string) {
	if s := r.floorOf(r.Runs[0].System); s != "" {
		parts = append(parts, s)
	}
	return append(parts, r.lost())
}

// systems returns the systems in the order of their first runs.
func (r *Report) systems() (out []string) {
	for _, run := range r.Runs {
		if !slices.Contains(out, run.System) {
			out = append(out, run.System)
		}
	}
	return out
}

// comparison says how many times as fast as peer the subject was, under all loads and with all
// settings; empty if no load was measured with both.
func (r *Report) comparison(subject, peer string) string {
	var all []stats.Ratio
	for _, g := range r.groups() {
		for _, own := range g.variants {
			for _, other := range g.variants {
				if own.runs[0].System != subject || other.runs[0].System != peer {
					continue
				}
				if ratio := own.timesAsFast(other); ratio.N > 0 {
					all = append(all, ratio)
				}
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	least, most, differ := all[0].Mean, all[0].Mean, false
	for _, ratio := range all {
		least, most, differ = min(least, ratio.Mean), max(most, ratio.Mean), differ || ratio.Differs()
	}
	between := func(a, b float64) string {
		if page.Factor(a) == page.Factor(b) {
			return page.Factor(a)
		}
		return page.Factor(a) + " to " + page.Factor(b)
	}
	switch {
	case !differ && len(all) == 1 && apart(least):
		return fmt.Sprintf("%s times as fast as %s, which so few runs do not make certain (95 %% confidence: %s)", page.Factor(least), peer, between(all[0].Low, all[0].Up))
	case !differ:
		return fmt.Sprintf("as fast as %s within the error (%s times)", peer, between(least, most))
	case least >= 1 && len(all) == 1 && all[0].N > 1:
		return fmt.Sprintf("%s times as fast as %s (95 %% confidence: %s)", page.Factor(least), peer, between(all[0].Low, all[0].Up))
	case least >= 1:
		return between(least, most) + " times as fast as " + peer
	case most <= 1:
		return fmt.Sprintf("slower than %s, %s times its time", peer, between(1/most, 1/least))
	}
	return between(least, most) + " times as fast as " + peer + ", depending on the load"
}

// alone gives the times of a system without another one to compare it with.
func (r *Report) alone(subject string) string {
	var times []float64
	pods := 0
	groups := r.groups()
	var fastest *variant
	for _, g := range groups {
		for _, v := range g.variants {
			if v.runs[0].System == subject && len(v.times) > 0 {
				times, pods = append(times, v.time().Mean), v.runs[0].Pods
				if fastest == nil || v.time().Mean < fastest.time().Mean {
					fastest = v
				}
			}
		}
	}
	switch {
	case len(times) == 0:
		return ""
	case len(times) == 1:
		return fmt.Sprintf("%s in %s, %s a second", page.Plural(pods, "pod"), fastest.time().Format(page.Seconds), page.Thousands(int(float64(pods)/times[0]+0.5)))
	case len(groups) == 1:
		return fmt.Sprintf("%s in %s to %s, the fastest is %s", page.Plural(pods, "pod"), page.Seconds(slices.Min(times)), page.Seconds(slices.Max(times)), r.called(fastest.runs[0]))
	}
	return fmt.Sprintf("%s in %s to %s", page.Plural(len(groups), "load"), page.Seconds(slices.Min(times)), page.Seconds(slices.Max(times)))
}

// valley compares the adaptive writer with the best of at least three fixed numbers of writes in
// flight, under the first load that has both; empty if there is none.
func (r *Report) valley(subject string) string {
	for _, g := range r.groups() {
		var adaptive, best *variant
		fixed := 0
		for _, v := range g.variants {
			setting, ok := v.runs[0].Settings[system.WritesInFlight]
			switch {
			case v.runs[0].System != subject || len(v.times) == 0 || !ok:
			case setting == "adaptive":
				if adaptive == nil {
					adaptive = v
				}
			default:
				if fixed++; best == nil || v.time().Mean < best.time().Mean {
					best = v
				}
			}
		}
		if adaptive == nil || fixed < 3 {
			continue
		}
		ratio := best.timesAsFast(adaptive)
		text := fmt.Sprintf("adaptive takes %s × the time of the best of %d fixed settings, %s", page.Factor(ratio.Mean), fixed, r.called(best.runs[0]))
		if !ratio.Differs() {
			text += ", which is no difference beyond the error"
		}
		return text
	}
	return ""
}

// floorOf gives the ratios of a system's runs to their floors.
func (r *Report) floorOf(subject string) string {
	var ratios []float64
	without, measured := 0, 0
	for _, run := range r.Runs {
		if run.System != subject || run.Floor == nil && run.RatioToFloor == nil {
			continue
		}
		measured++
		if run.RatioToFloor == nil {
			without++
		} else {
			ratios = append(ratios, *run.RatioToFloor)
		}
	}
	switch {
	case measured == 0:
		return ""
	case len(ratios) == 0:
		return "no floor, because the bare client was slower"
	}
	least, most := slices.Min(ratios), slices.Max(ratios)
	s := page.Factor(least)
	if page.Factor(most) != s {
		s += " to " + page.Factor(most)
	}
	s += " × the floor"
	if without > 0 {
		s += fmt.Sprintf(" (no floor in %d of %s)", without, page.Plural(measured, "run"))
	}
	return s
}

// lost says whether anything was lost.
func (r *Report) lost() string {
	runs, failed, violations := r.faults()
	missed := 0
	for _, run := range r.Runs {
		if run.Lost != "" {
			missed++
		}
	}
	if runs+failed+violations+missed == 0 {
		return "nothing lost"
	}
	var parts []string
	if missed > 0 {
		parts = append(parts, "the observer lost events in "+page.Plural(missed, "run"))
	}
	if failed > 0 {
		parts = append(parts, page.Plural(failed, "pod")+" failed or without a node")
	}
	late := 0
	for _, run := range r.Runs {
		if run.TimedOut != "" {
			late++
		}
	}
	if late > 0 {
		parts = append(parts, "the time ran out in "+page.Plural(late, "run"))
	}
	if violations > 0 {
		parts = append(parts, page.Plural(violations, "violation"))
	}
	if runs > 0 {
		parts = append(parts, page.Plural(runs, "run")+" not measured")
	}
	return strings.Join(parts, ", ")
}
