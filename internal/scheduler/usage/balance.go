package usage

import "time"

// Defaults and bounds of Balance.
const (
	BalanceEveryDefault = 5 * time.Minute
	// MovesMax is the number of pods that are moved at a time.
	MovesMax = 10
)

// Balance says when pods are moved from nodes that are used much to nodes that are used little.
type Balance struct {
	// Every is the interval at which pods are moved.
	Every time.Duration
	// Low is what a node that gets pods is used less than, of each resource. High is what a node that
	// loses pods is used more than, of any resource; no node gets more than that.
	Low, High Levels
	// OnlyPreemptable means that only pods are moved whose manifest says that they may be evicted.
	OnlyPreemptable bool
	// Queues and Labels select the pods; empty ones select all.
	Queues []string
	Labels map[string]string
}

// Levels are percentages of what a node has. 100 or more means that a resource does not count.
type Levels struct {
	CPU, Memory float64
	// Pods is the number of pods, as a percentage of how many the node takes.
	Pods float64
}

// Load is how much of a node is used.
type Load struct{ CPU, Memory, Pods float64 }

// Plus returns the load with another one added (times 1) or taken away (times -1).
func (l Load) Plus(o Load, times float64) Load {
	return Load{l.CPU + times*o.CPU, l.Memory + times*o.Memory, l.Pods + times*o.Pods}
}

// IsLow reports whether a node is used so little that it gets pods of others.
func (b *Balance) IsLow(l Load) bool {
	return below(l.CPU, b.Low.CPU) && below(l.Memory, b.Low.Memory) && below(l.Pods, b.Low.Pods)
}

func below(used, level float64) bool { return level >= 100 || used < level }

// IsHigh reports whether a node is used so much that it loses pods.
func (b *Balance) IsHigh(l Load) bool {
	return above(l.CPU, b.High.CPU) || above(l.Memory, b.High.Memory) || above(l.Pods, b.High.Pods)
}

func above(used, level float64) bool { return level < 100 && used > level }

// Helps reports whether a node that is used too much is used less without a pod, in a resource of
// which it has too much.
func (b *Balance) Helps(l, pod Load) bool {
	return above(l.CPU, b.High.CPU) && pod.CPU > 0 || above(l.Memory, b.High.Memory) && pod.Memory > 0 ||
		above(l.Pods, b.High.Pods) && pod.Pods > 0
}
