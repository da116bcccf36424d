package config

import (
	"maps"
	"slices"
	"strconv"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"lockstep.dev/lockstep/internal/scheduler/usage"
)

// usage makes the settings of a plugin that reads the use of nodes.
func (r *reader) usage(plugin string) {
	u := r.settings.Usage
	if u == nil {
		// Moved pods must prefer other nodes, also without the plugin usage.
		u = &usage.Config{
			Interval: usage.IntervalDefault, Weight: usage.WeightDefault, CPUWeight: 1, MemoryWeight: 1, ScoresOnly: true,
		}
		r.settings.Usage = u
	}
	switch plugin {
	case "usage":
		u.CPUMax, u.MemoryMax, u.ScoresOnly = usage.ThresholdDefault, usage.ThresholdDefault, false
	case "rescheduling":
		none := usage.Levels{CPU: 100, Memory: 100, Pods: 100}
		u.Balance = &usage.Balance{Every: usage.BalanceEveryDefault, Low: none, High: none}
	}
}

// strategy is a strategy of the plugin rescheduling.
type strategy struct {
	Name   string `yaml:"name"`
	Params struct {
		Thresholds struct {
			Low  map[string]yaml.Node `yaml:"thresholds"`
			High map[string]yaml.Node `yaml:"targetThresholds"`
		} `yaml:"nodeResourceUtilizationThresholds"`
		Low  map[string]yaml.Node `yaml:"thresholds"`
		High map[string]yaml.Node `yaml:"targetThresholds"`
	} `yaml:"params"`
}

// readRescheduling reads when and which pods are moved.
func readRescheduling(r *reader, path, key string, value *yaml.Node) bool {
	b := r.settings.Usage.Balance
	var err error
	switch key {
	case "interval":
		d, err := time.ParseDuration(value.Value)
		if err != nil || d < intervalMin {
			r.fail(path, "%q is no duration of a second or more", value.Value)
			return true
		}
		b.Every = d
	case "queueSelector":
		err = value.Decode(&b.Queues)
	case "labelSelector":
		err = value.Decode(&b.Labels)
	case "strategies":
		r.strategies = true
		var list []strategy
		if err = value.Decode(&list); err == nil {
			for i := range list {
				r.strategy(path+"["+strconv.Itoa(i)+"]", &list[i])
			}
			return true
		}
	default:
		return false
	}
	if err != nil {
		r.fail(path, "%s", err)
		return true
	}
	r.add(path, key, Works, "")
	return true
}

// strategy reads one strategy.
func (r *reader) strategy(path string, s *strategy) {
	b := r.settings.Usage.Balance
	switch s.Name {
	case "offlineOnly":
		b.OnlyPreemptable = true
		r.add(path, s.Name, Works, "")
	case "lowPriorityFirst", "shortLifeTimeFirst":
		r.add(path, s.Name, Works, "pods of low priority are always moved first, and among equals the youngest")
	case "bigObjectFirst", "moreReplicasFirst":
		r.add(path, s.Name, Missing, "pods of low priority are moved first, and among equals the youngest")
	case "lowNodeUtilization":
		r.loads++
		r.add(path, s.Name, Works, "")
		for _, of := range []struct {
			name   string
			values []map[string]yaml.Node
			to     *usage.Levels
		}{
			{"thresholds", []map[string]yaml.Node{s.Params.Low, s.Params.Thresholds.Low}, &b.Low},
			{"targetThresholds", []map[string]yaml.Node{s.Params.High, s.Params.Thresholds.High}, &b.High},
		} {
			for _, values := range of.values {
				r.levels(path+"."+of.name, values, of.to)
			}
		}
	default:
		r.fail(path, "there is no strategy %q", s.Name)
	}
}

// levels reads percentages by resource.
func (r *reader) levels(path string, values map[string]yaml.Node, to *usage.Levels) {
	at := map[string]*float64{"cpu": &to.CPU, "memory": &to.Memory, "mem": &to.Memory, "pods": &to.Pods}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		r.percentage(path+"."+name, name, &value, at)
	}
}

// finishBalance checks the settings that move pods as a whole.
func (r *reader) finishBalance(u *usage.Config) {
	b := u.Balance
	levels := func(low, high float64) bool { return low < 100 && low > high }
	switch {
	case r.listed && !r.shuffles:
		r.add(r.balances, "rescheduling", Needless, "the action shuffle is not listed, so no pods are moved")
	case r.loads == 0:
		if r.strategies {
			r.add(r.balances, "rescheduling", Needless, "no strategy says which nodes are used too much, so no pods are moved")
		}
	case levels(b.Low.CPU, b.High.CPU) || levels(b.Low.Memory, b.High.Memory) || levels(b.Low.Pods, b.High.Pods):
		r.fail(r.balances, "thresholds must not be above targetThresholds")
	default:
		return
	}
	u.Balance = nil
}
