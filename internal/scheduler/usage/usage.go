package usage

import "time"

// Defaults of Config.
const (
	IntervalDefault  = 30 * time.Second
	WeightDefault    = 5
	ThresholdDefault = 80
)

// Config says what is done with the use of nodes.
type Config struct {
	Source Source
	// Interval is the time between two readings.
	Interval time.Duration
	// Weight is the weight of the score in relation to others, and CPUWeight and MemoryWeight those of
	// the resources in it.
	Weight, CPUWeight, MemoryWeight int64
	// CPUMax and MemoryMax are the percentages from which on a node takes no more pods.
	CPUMax, MemoryMax float64
	// ScoresOnly means that nodes take pods however much they are used.
	ScoresOnly bool
	// Balance says when pods are moved; nil means that none are.
	Balance *Balance
}

// Source is where the use of nodes is read. The zero value stands for the API metrics.k8s.io.
type Source struct {
	// Prometheus is the URL of a Prometheus server that has the metrics of the node exporter.
	Prometheus string
	// Insecure means that its certificate is not checked.
	Insecure bool
}

// Use is how much of a node is used, in percent of what pods can have of it.
type Use struct {
	CPU, Memory float64
	// At is the time of the measurement.
	At time.Time
}

// scoreStep is the number of percent within which nodes get equal scores, so that most readings
// change nothing.
const scoreStep = 5

// MaxAge is how old a measurement may be.
func (c *Config) MaxAge() time.Duration { return max(3*c.Interval, 3*time.Minute) }

// Fresh reports whether a measurement is recent enough.
func (c *Config) Fresh(u Use, now time.Time) bool { return now.Sub(u.At) <= c.MaxAge() }

// Judge returns whether a node takes no more pods, and the points that are added to its score: from 0
// for a node that is used fully to 100 times Weight.
func (c *Config) Judge(u Use) (overused bool, score int64) {
	overused = !c.ScoresOnly && (u.CPU >= c.CPUMax || u.Memory >= c.MemoryMax)
	weights := c.CPUWeight + c.MemoryWeight
	if weights <= 0 {
		return overused, 0
	}
	return overused, c.Weight * (c.CPUWeight*idle(u.CPU) + c.MemoryWeight*idle(u.Memory)) / weights
}

// idle returns the percentage that is not used, rounded to a multiple of scoreStep.
func idle(used float64) int64 {
	free := 100 - min(max(used, 0), 100)
	return int64(free/scoreStep+0.5) * scoreStep
}
