package series

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"lockstep.dev/lockstep/internal/lab/metrics"
	"lockstep.dev/lockstep/internal/lab/page"
)

// kindsMax bounds the kinds of requests in a table.
const kindsMax = 15

// MetricTables are the tables of what the processes reported about themselves.
func (c *Circumstances) MetricTables() (out []page.Table) {
	f := c.Metrics
	if f == nil {
		return nil
	}
	add := func(t page.Table) {
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	if s := f.Server; s != nil {
		add(requests(s))
		add(levels(s))
		add(histograms("Admission webhooks", "calls", s.Webhooks))
	}
	etcd := map[string]metrics.Histogram{}
	if f.Server != nil && f.Server.Etcd.Count > 0 {
		etcd["request of the API server"] = f.Server.Etcd
	}
	if f.Etcd != nil {
		etcd["fsync of the log"], etcd["commit of the database"] = f.Etcd.Fsync, f.Etcd.Commit
	}
	t := histograms("etcd", "times", etcd)
	if f.Etcd != nil {
		t.Note = fmt.Sprintf("The database has %.1f MiB.", f.Etcd.DatabaseMiB)
	}
	add(t)
	add(queues(f))
	throttled := map[string]metrics.Histogram{}
	for name, c := range f.Controllers {
		if c.Throttled != nil {
			throttled[name] = *c.Throttled
		}
	}
	add(histograms("Wait for the client's own limit", "requests", throttled))
	add(workers(f))
	missing := []page.Pair{}
	for _, name := range sorted(f.Missing) {
		missing = append(missing, page.Pair{Name: name, Value: f.Missing[name]})
	}
	add(page.Pairs("No metrics", missing...))
	return out
}

func requests(s *metrics.Server) page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Requests to the API server", Key: true, Help: "of all clients, watches left out"}, {Title: "Number", Right: true}}}
	kinds := slices.SortedFunc(maps.Keys(s.Requests), func(a, b string) int {
		return cmp.Or(s.Requests[b]-s.Requests[a], cmp.Compare(a, b))
	})
	for _, kind := range kinds[:min(len(kinds), kindsMax)] {
		t.Rows = append(t.Rows, []page.Cell{page.Text(kind), page.Text(page.Thousands(s.Requests[kind]))})
	}
	for _, code := range sorted(s.Codes) {
		if code >= "400" {
			t.Rows = append(t.Rows, []page.Cell{page.Text("answered with " + code), page.Count(s.Codes[code], page.Warn)})
		}
	}
	if len(kinds) > kindsMax {
		t.Note = fmt.Sprintf("And %d other kinds.", len(kinds)-kindsMax)
	}
	return t
}

func levels(s *metrics.Server) page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Flow control", Key: true, Help: "priority levels of API Priority and Fairness"},
		{Title: "Requests", Right: true}, {Title: "Wait", Right: true, Help: "mean time of requests in the level's queues"}, {Title: "p99", Right: true},
		{Title: "Rejected", Right: true, Help: "requests that were refused with 429"}}}
	for _, name := range sorted(s.Levels) {
		l := s.Levels[name]
		t.Rows = append(t.Rows, []page.Cell{page.Text(name), page.Text(page.Thousands(l.Requests)), millis(l.Wait.MeanMs), millis(l.Wait.P99Ms), page.Count(l.Rejected, page.Warn)})
	}
	return t
}

func histograms(title, count string, of map[string]metrics.Histogram) page.Table {
	t := page.Table{Columns: []page.Column{{Title: title, Key: true}, {Title: count, Right: true}, {Title: "Mean", Right: true}, {Title: "p99", Right: true},
		{Title: "In all", Right: true}}}
	for _, name := range sorted(of) {
		if h := of[name]; h.Count > 0 {
			t.Rows = append(t.Rows, []page.Cell{page.Text(name), page.Text(page.Thousands(h.Count)), millis(h.MeanMs), millis(h.P99Ms), page.Text(page.Seconds(h.Seconds))})
		}
	}
	return t
}

func queues(f *metrics.Figures) page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Queue", Key: true}, {Title: "Items", Right: true},
		{Title: "Deepest", Right: true, Help: "the most items that waited, of one sample a second"},
		{Title: "Wait", Right: true, Help: "mean time of an item in the queue"}, {Title: "p99", Right: true},
		{Title: "Work", Right: true, Help: "mean time of the processing of an item"}, {Title: "Retries", Right: true}}}
	for _, process := range sorted(f.Controllers) {
		c := f.Controllers[process]
		for _, name := range sorted(c.Queues) {
			q := c.Queues[name]
			t.Rows = append(t.Rows, []page.Cell{page.Text(process + ": " + name), page.Text(page.Thousands(q.Adds)), page.Text(page.Thousands(q.DepthMax)),
				millis(q.Wait.MeanMs), millis(q.Wait.P99Ms), millis(q.Work.MeanMs), page.Text(page.Thousands(q.Retries))})
		}
	}
	return t
}

func workers(f *metrics.Figures) page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Workers", Key: true}, {Title: "Most active", Right: true, Help: "of one sample a second"}, {Title: "Of", Right: true}}}
	for _, process := range sorted(f.Controllers) {
		for _, name := range sorted(f.Controllers[process].Workers) {
			w := f.Controllers[process].Workers[name]
			t.Rows = append(t.Rows, []page.Cell{page.Text(process + ": " + name), page.Text(fmt.Sprint(w.Active)), page.Text(fmt.Sprint(w.Max))})
		}
	}
	return t
}

// millis formats a short time with the digits that matter.
func millis(ms float64) page.Cell {
	if ms > 0 && ms < 10 {
		return page.Textf("%.2g ms", ms)
	}
	return page.Text(page.Ms(ms))
}

// processColors are the colours of processes, so that a process has the same in all charts.
var processColors = map[string]int{metrics.APIServer: 0, metrics.EtcdName: 1, "manager": 2, "kube-controller-manager": 3, "kube-scheduler": 4,
	"kwok": 5, "client": 7}

// ColorOf returns the index of the colour of a process.
func ColorOf(process string) int {
	if c, ok := processColors[process]; ok {
		return c
	}
	return 6
}

// queuesMax bounds the lines of the chart of queues: the deepest are drawn.
const queuesMax = 6

// MetricCharts are the charts of the CPU time of each process and of the depths of queues over time.
func (c *Circumstances) MetricCharts() (out []page.Chart) {
	if c.Metrics == nil || len(c.Metrics.Samples) < 3 {
		return nil
	}
	samples := c.Metrics.Samples
	cpu := page.Chart{Title: "CPUs used, by process", Unit: " s"}
	names := map[string]bool{}
	deepest := map[string]int{}
	for _, s := range samples {
		for name := range s.CPU {
			names[name] = true
		}
		for name, depth := range s.Depths {
			deepest[name] = max(deepest[name], depth)
		}
	}
	for _, name := range sorted(names) {
		l := page.Line{Name: name, Color: ColorOf(name)}
		for _, s := range samples {
			if used, ok := s.CPU[name]; ok {
				l.X, l.Y = append(l.X, s.At), append(l.Y, used)
			}
		}
		cpu.Lines = append(cpu.Lines, l)
	}
	out = append(out, cpu)
	depth := page.Chart{Title: "Items that wait, by queue", Unit: " s"}
	queues := slices.SortedFunc(maps.Keys(deepest), func(a, b string) int { return cmp.Or(deepest[b]-deepest[a], cmp.Compare(a, b)) })
	for i, name := range queues[:min(len(queues), queuesMax)] {
		l := page.Line{Name: name, Color: i}
		for _, s := range samples {
			l.X, l.Y = append(l.X, s.At), append(l.Y, float64(s.Depths[name]))
		}
		depth.Lines = append(depth.Lines, l)
	}
	if len(depth.Lines) > 0 {
		out = append(out, depth)
	}
	return out
}

// DropSamples removes the samples, which are for the page.
func (c *Circumstances) DropSamples() {
	if c.Metrics != nil {
		c.Metrics.Samples = nil
	}
}
