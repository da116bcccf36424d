package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// bytesMax bounds a configuration.
const bytesMax = 1 << 20

// Settings are what the scheduler is configured with. The zero value changes nothing.
type Settings struct {
	// NoPreemption and NoReclaim are set if the configuration lists actions, and none that evicts
	// pods of lower priority, or of queues that have more than they deserve.
	NoPreemption, NoReclaim bool
	// ReclaimByWeight is set if the configuration lists an action that reclaims, and the plugin proportion:
	// what queues deserve that state nothing follows from their weights.
	ReclaimByWeight bool
	// PreemptAcross means that gangs also evict gangs of lower priority in other queues.
	PreemptAcross bool
	// OverdueAfter is how long the first gang of a queue waits before capacity is kept for it; 0 means
	// that the configuration does not say.
	OverdueAfter time.Duration
	// UsageHalfLife is the time after which what a queue has used counts half as much; 0 means that the
	// configuration does not say.
	UsageHalfLife time.Duration
	// Zones are the revocable zones; nil means that there are none.
	Zones *zones.Config
	// Usage says what is done with the measured use of nodes; nil means nothing.
	Usage *usage.Config
	// Place has the strategy, the weights and the resources of scores. Unset fields have zero values.
	Place place.Options
}

// Verdict says what becomes of a part of a configuration.
type Verdict string

// The verdicts.
const (
	Works    Verdict = "works"
	Differs  Verdict = "differs"  // it works in another way, which Finding.Text describes
	Needless Verdict = "needless" // it tunes something that Lockstep does not have
	Missing  Verdict = "missing"  // Lockstep does nothing of it
)

// Finding says what becomes of one part of a configuration.
type Finding struct {
	Path    string // such as tiers[0].plugins[2].arguments[binpack.weight]
	Line    int    // in the text passed to Parse, from 1
	Name    string // of the action, the plugin or the argument
	Verdict Verdict
	Text    string // a sentence without a full stop; may be empty if the verdict is Works
}

// document is a scheduler configuration.
type document struct {
	Actions string `yaml:"actions"`
	Tiers   []struct {
		Plugins []plugin `yaml:"plugins"`
	} `yaml:"tiers"`
	Configurations []configuration      `yaml:"configurations"`
	Metrics        map[string]yaml.Node `yaml:"metrics"`
}

type plugin struct {
	Name      string               `yaml:"name"`
	Arguments map[string]yaml.Node `yaml:"arguments"`
	Switches  map[string]yaml.Node `yaml:",inline"`
}

type configuration struct {
	Name      string               `yaml:"name"`
	Arguments map[string]yaml.Node `yaml:"arguments"`
}

// Parse reads a configuration. The text may also be a ConfigMap with the configuration in its data,
// under a key that ends in .conf.
func Parse(data []byte) (Settings, []Finding, error) {
	if len(data) > bytesMax {
		return Settings{}, nil, fmt.Errorf("the configuration has %d bytes, more than %d", len(data), bytesMax)
	}
	data, lines, err := configOf(data)
	if err != nil {
		return Settings{}, nil, err
	}
	var doc document
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return Settings{}, nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return Settings{}, nil, errors.New("the configuration is empty")
	case err != nil:
		return Settings{}, nil, err
	}
	defaults := place.DefaultWeights()
	r := &reader{root: &root, weights: weights{Weights: defaults, least: defaults.Resources, binpack: 1}}
	r.actions(doc.Actions)
	for i, t := range doc.Tiers {
		for j, p := range t.Plugins {
			r.plugin(fmt.Sprintf("tiers[%d].plugins[%d]", i, j), p)
		}
	}
	for i, c := range doc.Configurations {
		r.configuration(fmt.Sprintf("configurations[%d]", i), c)
	}
	if doc.Metrics != nil {
		r.metrics(doc.Metrics)
	}
	r.finish()
	for i := range r.findings {
		r.findings[i].Line += lines
	}
	return r.settings, r.findings, errors.Join(r.errs...)
}

// configOf returns the configuration in a ConfigMap, and the number of lines before it; any other
// text is returned as it is.
func configOf(data []byte) (config []byte, lines int, err error) {
	var cm struct {
		Kind string               `yaml:"kind"`
		Data map[string]yaml.Node `yaml:"data"`
	}
	if err := yaml.Unmarshal(data, &cm); err != nil || cm.Kind == "" {
		return data, 0, nil // Parse reports what is wrong
	}
	if cm.Kind != "ConfigMap" {
		return nil, 0, fmt.Errorf("kind: %s: want a ConfigMap, or the configuration itself", cm.Kind)
	}
	var keys []string
	for key := range cm.Data {
		if strings.HasSuffix(key, ".conf") {
			keys = append(keys, key)
		}
	}
	if slices.Sort(keys); len(keys) != 1 {
		return nil, 0, fmt.Errorf("data: want one key that ends in .conf, found %d", len(keys))
	}
	node := cm.Data[keys[0]]
	return []byte(node.Value), node.Line, nil
}

// reader collects what a configuration means.
type reader struct {
	root     *yaml.Node
	settings Settings
	findings []Finding
	errs     []error
	weights  weights
	binpack  bool
	// proportion and fairShare mean that these plugins are listed.
	proportion, fairShare bool
	// loads is the number of strategies of rescheduling that move pods, and balances is the path of the
	// plugin.
	loads    int
	balances string
	// strategies means that the plugin lists strategies.
	strategies bool
	// shuffles means that the action shuffle is listed.
	shuffles bool
	// listed means that actions are listed, and vacates that one of them has pods leave nodes that are
	// wanted back.
	listed, vacates bool
}

func (r *reader) add(path, name string, v Verdict, text string) {
	r.findings = append(r.findings, Finding{Path: path, Line: lineOf(r.root, path), Name: name, Verdict: v, Text: text})
}

func (r *reader) fail(path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %s: %s", lineOf(r.root, path), path, fmt.Sprintf(format, args...)))
}

// actions reads the list of actions.
func (r *reader) actions(list string) {
	if strings.TrimSpace(list) == "" {
		return
	}
	r.settings.NoPreemption, r.settings.NoReclaim, r.listed = true, true, true
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		a, known := actions[name]
		if !known {
			r.fail("actions", "there is no action %q", name)
			continue
		}
		r.add("actions", name, a.verdict, a.text)
		if a.preempts {
			r.settings.NoPreemption = false
		}
		r.vacates = r.vacates || a.vacates
		r.shuffles = r.shuffles || name == "shuffle"
		if a.reclaims {
			r.settings.NoReclaim = false
		}
	}
}

// plugin reads a plugin of a tier.
func (r *reader) plugin(path string, p plugin) {
	if p.Name == "" {
		r.fail(path+".name", "a plugin needs a name")
		return
	}
	known, ok := plugins[p.Name]
	if !ok {
		r.add(path, p.Name, Missing, "Lockstep does not know this plugin")
		return
	}
	r.add(path, p.Name, known.verdict, known.text)
	if p.Name == "usage" || p.Name == "rescheduling" {
		r.usage(p.Name)
		if p.Name == "rescheduling" {
			r.balances = path
		}
	}
	if p.Name == "tdm" && r.settings.Zones == nil {
		r.settings.Zones = &zones.Config{Windows: map[string]zones.Window{}, EvictEvery: zones.EvictEveryDefault}
	}
	r.binpack = r.binpack || p.Name == "binpack"
	r.proportion = r.proportion || p.Name == "proportion"
	r.fairShare = r.fairShare || p.Name == "fairshare"
	for _, key := range sortedKeys(p.Switches) {
		at := path + "." + key
		node := p.Switches[key]
		on, err := strconv.ParseBool(node.Value)
		switch {
		case !strings.HasPrefix(key, "enable"):
			r.fail(at, "a plugin has a name, arguments, and switches that begin with enable")
		case err != nil:
			r.fail(at, "%q is neither true nor false", node.Value)
		case p.Name == "usage" && key == "enablePredicate":
			r.settings.Usage.ScoresOnly = !on
			r.add(at, key, Works, "")
		case !on && known.verdict != Missing:
			r.add(at, key, Differs, "rules cannot be switched off one by one")
		}
	}
	for _, key := range sortedKeys(p.Arguments) {
		at := path + ".arguments[" + key + "]"
		node := p.Arguments[key]
		if known.verdict == Missing {
			continue
		}
		if known.read != nil && known.read(r, at, key, &node) {
			continue
		}
		if text, ok := known.arguments[key]; ok {
			r.add(at, key, text.verdict, text.text)
			continue
		}
		r.add(at, key, Missing, "Lockstep does not know this argument")
	}
}

// configuration reads the arguments of an action.
func (r *reader) configuration(path string, c configuration) {
	if _, known := actions[c.Name]; !known {
		r.fail(path+".name", "there is no action %q", c.Name)
		return
	}
	for _, key := range sortedKeys(c.Arguments) {
		at := path + ".arguments[" + key + "]"
		if c.Name == "preempt" && key == "lockstep.across-queues" {
			value := c.Arguments[key].Value
			if across, err := strconv.ParseBool(value); err != nil {
				r.fail(at, "%q is neither true nor false", value)
			} else {
				r.settings.PreemptAcross = across
				r.add(at, key, Works, "")
			}
			continue
		}
		r.add(at, key, Needless, "Lockstep finds nodes and victims in another way, which has no such setting")
	}
}

// finish decides what depends on several parts: the scores, and whether pods leave nodes.
func (r *reader) finish() {
	if r.fairShare && r.settings.UsageHalfLife == 0 {
		r.settings.UsageHalfLife = fairShareHalfLife
	}
	r.settings.ReclaimByWeight = r.listed && !r.settings.NoReclaim && r.proportion
	if u := r.settings.Usage; u != nil && u.Balance != nil {
		r.finishBalance(u)
	}
	if z := r.settings.Zones; z != nil {
		z.NoEvictions = r.listed && !r.vacates
	}
	w := r.weights
	o := &r.settings.Place
	switch {
	case len(w.fit) > 0:
		o.Strategy, o.Resources, w.Resources = place.LeastAllocated, w.fit, w.least
	case r.binpack && w.binpack > 0:
		o.Strategy, o.Resources = place.MostAllocated, w.binpackResources()
		w.set, w.Resources = true, w.binpack
	case w.most > w.least:
		o.Strategy, w.Resources = place.MostAllocated, w.most
	default:
		w.Resources = w.least
	}
	if w.set {
		o.Weights = w.Weights
	}
}

func sortedKeys(m map[string]yaml.Node) []string {
	return slices.Sorted(maps.Keys(m))
}

// lineOf returns the line of a path such as tiers[0].plugins[2].arguments[binpack.weight], or of the
// last part of it that exists.
func lineOf(root *yaml.Node, path string) int {
	n := root
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	line := n.Line
	for _, step := range steps(path) {
		var next *yaml.Node
		switch n.Kind {
		case yaml.SequenceNode:
			var i int
			if _, err := fmt.Sscan(step, &i); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					line, next = n.Content[i].Line, n.Content[i+1]
				}
			}
		}
		if next == nil {
			return line
		}
		n = next
	}
	return line
}

// steps splits a path into names and indices. Names in brackets may have dots.
func steps(path string) []string {
	var out []string
	for path != "" {
		switch i := strings.IndexAny(path, ".["); {
		case path[0] == '[':
			end := strings.IndexByte(path, ']')
			out, path = append(out, path[1:end]), strings.TrimPrefix(path[end+1:], ".")
		case i < 0:
			return append(out, path)
		default:
			out = append(out, path[:i])
			if path = path[i:]; path[0] == '.' {
				path = path[1:]
			}
		}
	}
	return out
}
