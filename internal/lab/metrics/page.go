package metrics

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page has the values that one process reported at one moment, by the name of the metric. The
// buckets, sum and count of a histogram are metrics of their own.
type Page map[string][]Value

// Value is one value of a metric.
type Value struct {
	Labels map[string]string
	Value  float64
}

// lineMax bounds the length of a line of a text.
const lineMax = 1 << 20

// Parse reads the metrics that Compute uses. The API server's text has megabytes, so the lines of
// other metrics are dropped before they are parsed.
func Parse(r io.Reader) (Page, error) {
	var kept bytes.Buffer
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 1<<16), lineMax)
	for lines.Scan() {
		line := lines.Bytes()
		if end := bytes.IndexAny(line, "{ "); end > 0 && used[string(line[:end])] {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	page := Page{}
	for name, family := range families {
		for _, m := range family.Metric {
			page[name] = append(page[name], Value{labels(m), m.GetUntyped().GetValue()})
		}
	}
	return page, nil
}

func labels(m *dto.Metric) map[string]string {
	out := make(map[string]string, len(m.Label))
	for _, l := range m.Label {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// Sum adds the values of a metric whose labels have the given values, as name, value pairs.
func (p Page) Sum(name string, labels ...string) (sum float64) {
	for _, v := range p[name] {
		if v.matches(labels) {
			sum += v.Value
		}
	}
	return sum
}

// Has reports whether the process has a metric.
func (p Page) Has(name string) bool { return len(p[name]) > 0 }

func (v Value) matches(labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if v.Labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// values returns the distinct values of a label of a metric, sorted.
func (p Page) values(name, label string) (out []string) {
	for _, v := range p[name] {
		out = append(out, v.Labels[label])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// span has two pages of one process: of the beginning and the end of a load.
type span struct{ before, after Page }

// rise returns how much a counter rose. A process that was started anew counts from 0.
func (s span) rise(name string, labels ...string) float64 {
	before, after := s.before.Sum(name, labels...), s.after.Sum(name, labels...)
	if after < before {
		return after
	}
	return after - before
}

// Histogram summarises what a histogram observed during a load.
type Histogram struct {
	Count int `json:"count"`
	// MeanMs and P99Ms are in milliseconds. P99Ms is interpolated in its bucket; Seconds is the sum.
	MeanMs  float64 `json:"meanMs"`
	P99Ms   float64 `json:"p99Ms"`
	Seconds float64 `json:"seconds"`
}

func (s span) histogram(name string, labels ...string) Histogram {
	sum := s.rise(name+"_sum", labels...)
	h := Histogram{Count: int(s.rise(name+"_count", labels...)), Seconds: round(sum)}
	if h.Count == 0 {
		return h
	}
	h.MeanMs = round(1e3 * sum / float64(h.Count))
	h.P99Ms = round(1e3 * s.quantile(0.99, name+"_bucket", labels...))
	return h
}

// quantile interpolates linearly in the bucket of the quantile. Of the last bucket, which has no
// upper bound, it returns the lower one.
func (s span) quantile(q float64, buckets string, labels ...string) float64 {
	counts := map[float64]float64{}
	add := func(p Page, sign float64) {
		for _, v := range p[buckets] {
			if bound, err := strconv.ParseFloat(v.Labels["le"], 64); err == nil && v.matches(labels) {
				counts[bound] += sign * v.Value
			}
		}
	}
	add(s.before, -1)
	add(s.after, 1)
	var bounds []float64
	for bound := range counts {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 {
		return 0
	}
	rank := q * counts[bounds[len(bounds)-1]]
	low, below := 0.0, 0.0
	for _, bound := range bounds {
		n := counts[bound]
		if n >= rank {
			if math.IsInf(bound, 1) || n == below {
				return low
			}
			return low + (bound-low)*(rank-below)/(n-below)
		}
		low, below = bound, n
	}
	return low
}

func round(x float64) float64 { return math.Round(x*1e3) / 1e3 }
