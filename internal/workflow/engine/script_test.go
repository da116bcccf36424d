package engine

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata give as what they should give")

// TestScripts plays the files in testdata: a manifest, then events, each block followed by what the
// engine did.
//
//	pod NAME PHASE [key=value ...]   a pod's state; result, exit, message, host, ip, ready, error,
//	                                 gone, or an output parameter; artifact:NAME=KEY is an output
//	                                 artifact
//	all PHASE                        the state of all pods under way
//	resume NAME [key=value ...]      ends a pause; supplies outputs
//	after DURATION                   lets time pass
//	spec FIELD VALUE                 changes the workflow: shutdown, suspend, parallelism, deadline
//	restart                          goes on with a new Run on the status
//	nodes                            prints the nodes
//
// After each block a second Run is built from the status: it must find nothing to do.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := &player{t: t, pods: map[string]PodState{}}
			var out strings.Builder
			for block := range strings.SplitSeq(strings.TrimSpace(string(content)), "\n\n") {
				input, _, _ := strings.Cut(block, "\n----")
				fmt.Fprintf(&out, "%s\n----\n%s\n", strings.TrimSpace(input), p.play(input))
			}
			got := strings.TrimSpace(out.String()) + "\n"
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(content) {
				t.Errorf("%s gives (-rewrite to accept):\n%s", file, got)
			}
		})
	}
}

// library holds the objects of a script's manifest besides the workflow.
type library struct {
	templates  map[string]*wf.WorkflowSpec
	configMaps map[string]map[string]string
}

func (l *library) Spec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
	spec, found := l.templates[scopeOf(cluster, name)]
	return spec, found
}

func (l *library) ConfigMapKey(name, key string) (string, bool) {
	value, found := l.configMaps[name][key]
	return value, found
}

func (l *library) ConfigMap(name string) bool { return l.configMaps[name] != nil }

type player struct {
	t    *testing.T
	run  *Run
	lib  *library
	now  time.Time
	pods map[string]PodState // by node ID
	out  strings.Builder

	locks *locks.Table
	cache map[string]string // by ConfigMap/key
}

func (p *player) config() Config {
	return Config{Library: p.lib, Evaluate: template.InProcess(), Transient: func(m string) bool { return strings.Contains(m, "transient") }}
}

func (p *player) play(input string) string {
	p.out.Reset()
	if p.run == nil {
		p.load(input)
		p.step()
	} else {
		for line := range strings.Lines(input) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				p.command(strings.Fields(line))
			}
		}
	}
	p.check()
	return p.out.String()
}

func (p *player) load(input string) {
	p.now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	p.lib = &library{templates: map[string]*wf.WorkflowSpec{}, configMaps: map[string]map[string]string{}}
	p.cache = map[string]string{}
	p.locks = locks.New(func(namespace, configMap, key string) (int, error) {
		value, found := p.lib.configMaps[configMap][key]
		if !found {
			return 0, fmt.Errorf("ConfigMap %s/%s has no key %s", namespace, configMap, key)
		}
		return strconv.Atoi(value)
	})
	var w *wf.Workflow
	for doc := range strings.SplitSeq(input, "\n---\n") {
		var kind metav1.TypeMeta
		p.must(yaml.Unmarshal([]byte(doc), &kind))
		switch kind.Kind {
		case "WorkflowTemplate", "ClusterWorkflowTemplate":
			var one wf.WorkflowTemplate
			p.must(yaml.UnmarshalStrict([]byte(doc), &one))
			p.lib.templates[scopeOf(kind.Kind != "WorkflowTemplate", one.Name)] = &one.Spec
		case "ConfigMap":
			var one corev1.ConfigMap
			p.must(yaml.UnmarshalStrict([]byte(doc), &one))
			p.lib.configMaps[one.Name] = one.Data
		default:
			w = &wf.Workflow{}
			p.must(yaml.UnmarshalStrict([]byte(doc), w))
		}
	}
	w.Namespace, w.UID, w.CreationTimestamp = "default", "0001", metav1.NewTime(p.now)
	p.run = New(w, p.config())
	for key, value := range w.Annotations { // other holders of locks, and cache entries
		if lock, found := strings.CutPrefix(key, "test/lock-"); found {
			p.locks.Acquire(locks.Request{Holder: value, Keys: []string{strings.ReplaceAll(lock, ".", "/")}})
		}
	}
}

func (p *player) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) command(words []string) {
	switch words[0] {
	case "pod":
		p.step(p.pod(p.id(words[1]), corev1.PodPhase(words[2]), words[3:]))
	case "all":
		var events []Event
		for _, id := range sortedKeys(p.pods) {
			if n := p.run.Workflow.Status.Nodes[id]; !n.Phase.Fulfilled() {
				events = append(events, p.pod(id, corev1.PodPhase(words[1]), words[2:]))
			}
		}
		p.step(events...)
	case "resume":
		e := Resume{NodeID: p.id(words[1]), Outputs: map[string]string{}}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			e.Outputs[key] = value
		}
		p.step(e)
	case "after":
		d, err := time.ParseDuration(words[1])
		p.must(err)
		p.now = p.now.Add(d)
		p.step()
	case "spec":
		spec := &p.run.Workflow.Spec
		number := func() *int64 {
			n, err := strconv.ParseInt(words[2], 10, 64)
			if words[2] == "none" {
				return nil
			}
			p.must(err)
			return &n
		}
		switch words[1] {
		case "shutdown":
			spec.Shutdown = wf.ShutdownStrategy(words[2])
		case "parallelism":
			spec.Parallelism = number()
		case "deadline":
			spec.ActiveDeadlineSeconds = number()
		default:
			suspend := words[2] == "true"
			spec.Suspend = &suspend
		}
		p.step()
	case "restart":
		p.run = p.again()
		p.step(p.states()...)
	case "release": // another workflow's lock
		p.step(p.locked(p.locks.Release(words[1]))...)
	case "nodes":
		p.nodes()
	default:
		p.t.Fatalf("unknown command %q", words)
	}
}

func (p *player) id(name string) string { return wf.NodeID(p.run.Workflow.Name, name) }

func (p *player) pod(id string, phase corev1.PodPhase, words []string) PodState {
	if _, found := p.pods[id]; !found {
		p.t.Fatalf("no pod for node %s", id)
	}
	e := PodState{NodeID: id, Phase: phase}
	outputs := &wf.Outputs{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		value = strings.ReplaceAll(value, "_", " ")
		switch key {
		case "result":
			outputs.Result = &value
		case "exit":
			code, err := strconv.Atoi(value)
			p.must(err)
			e.ExitCode = new(int32)
			*e.ExitCode = int32(code)
		case "message":
			e.Message = value
		case "host":
			e.HostName = value
		case "ip":
			e.PodIP = value
		case "progress":
			e.Progress = value
		case "ready":
			e.Ready = true
		case "error":
			e.Error = true
		case "gone":
			e.Gone = true
		case "awaited":
			e.Awaited = true
		default:
			if name, found := strings.CutPrefix(key, "artifact:"); found {
				outputs.Artifacts = append(outputs.Artifacts, wf.Artifact{Name: name, ArtifactLocation: wf.ArtifactLocation{S3: &wf.S3Artifact{Key: value}}})
				continue
			}
			outputs.Parameters = append(outputs.Parameters, wf.Parameter{Name: key, Value: wf.Any(value)})
		}
	}
	e.Outputs = outputs
	p.pods[id] = e
	return e
}

// step runs the engine's Step and prints the result.
func (p *player) step(events ...Event) {
	before := p.run.Workflow.Status.Phase
	result := p.run.Step(p.now, events...)
	if answers := p.answer(result); len(answers) > 0 {
		defer p.step(answers...)
	}
	for _, c := range result.Create {
		p.pods[c.NodeID] = PodState{NodeID: c.NodeID, Phase: corev1.PodPending}
		what := ""
		switch t := c.Template; {
		case t.Container != nil:
			what = strings.Join(append(append([]string{}, t.Container.Command...), t.Container.Args...), " ")
		case t.Script != nil:
			what = t.Script.Source
		case t.HTTP != nil:
			what = t.HTTP.URL
		case t.Resource != nil:
			what = t.Resource.Action + " " + t.Resource.Manifest
		}
		if in := p.run.Workflow.Status.Nodes[c.NodeID].Inputs; in != nil {
			for _, a := range in.Artifacts {
				location, _ := json.Marshal(a.ArtifactLocation)
				what += " " + a.Name + "=" + string(location)
			}
		}
		if len(c.AvoidHosts) > 0 {
			what += " not on " + strings.Join(c.AvoidHosts, ",")
		}
		if c.IncludeResult {
			what += " (result)"
		}
		fmt.Fprintf(&p.out, "create %s: %s\n", c.PodName, strings.TrimSpace(what))
	}
	for _, d := range result.Delete {
		fmt.Fprintf(&p.out, "delete %s: %s\n", d.PodName, d.Reason)
	}
	if !result.Wake.IsZero() {
		fmt.Fprintf(&p.out, "wake in %s\n", result.Wake.Sub(p.now))
	}
	if s := p.run.Workflow.Status; s.Phase != before {
		fmt.Fprintf(&p.out, "workflow %s %s %s\n", s.Phase, s.Progress, s.Message)
	}
}

// answer prints and carries out the engine's requests except those about pods.
func (p *player) answer(result Result) []Event {
	var events []Event
	if result.StatusFirst {
		p.out.WriteString("status first\n")
	}
	for _, l := range result.Locks {
		fmt.Fprintf(&p.out, "lock %s %s\n", l.Holder, strings.Join(l.Keys, " "))
		events = append(events, LockState(p.locks.Acquire(l)))
	}
	for _, holder := range result.Unlock {
		fmt.Fprintf(&p.out, "unlock %s\n", holder)
		events = append(events, p.locked(p.locks.Release(holder))...)
	}
	for _, s := range result.Stores {
		fmt.Fprintf(&p.out, "store %s/%s %s\n", s.ConfigMap, s.Key, s.Entry())
		p.cache[s.ConfigMap+"/"+s.Key] = s.Entry()
	}
	for _, l := range result.Lookups {
		text, found := p.cache[l.ConfigMap+"/"+l.Key]
		fmt.Fprintf(&p.out, "lookup %s/%s\n", l.ConfigMap, l.Key)
		events = append(events, l.Answer(text, found))
	}
	for _, s := range result.Samples {
		fmt.Fprintf(&p.out, "metric %s %s%v %s %v", s.Kind, s.Name, s.Labels, s.Operation, s.Value)
		if !s.Since.IsZero() {
			fmt.Fprintf(&p.out, " since %s", s.Since.Format(time.TimeOnly))
		}
		fmt.Fprintf(&p.out, " %v\n", s.Buckets)
	}
	return events
}

// locked returns the states of this workflow's lock requests.
func (p *player) locked(states []locks.State) []Event {
	var events []Event
	for _, s := range states {
		if _, name := locks.WorkflowOf(s.Holder); name == p.run.Workflow.Name {
			events = append(events, LockState(s))
		}
	}
	return events
}

// nodes prints the nodes sorted by name.
func (p *player) nodes() {
	nodes := p.run.Workflow.Status.Nodes
	byName := map[string]wf.NodeStatus{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	names := func(ids []string) string {
		var out []string
		for _, id := range ids {
			out = append(out, strings.TrimPrefix(nodes[id].Name, p.run.Workflow.Name))
		}
		return strings.Join(out, " ")
	}
	for _, name := range sortedKeys(byName) {
		n := byName[name]
		fmt.Fprintf(&p.out, "%s %s %s", name, n.Type, n.Phase)
		if n.TemplateName != "" {
			fmt.Fprintf(&p.out, " template=%s", n.TemplateName)
		}
		if n.TemplateRef != nil {
			fmt.Fprintf(&p.out, " ref=%s/%s", n.TemplateRef.Name, n.TemplateRef.Template)
		}
		if n.Inputs != nil {
			for _, in := range n.Inputs.Parameters {
				fmt.Fprintf(&p.out, " %s=%s", in.Name, *in.Value)
			}
		}
		if n.Outputs != nil {
			if n.Outputs.Result != nil {
				fmt.Fprintf(&p.out, " result=%s", *n.Outputs.Result)
			}
			for _, o := range n.Outputs.Parameters {
				if o.Value != nil {
					fmt.Fprintf(&p.out, " ->%s=%s", o.Name, *o.Value)
				}
			}
			for _, a := range n.Outputs.Artifacts {
				fmt.Fprintf(&p.out, " ->%s", a.Name)
			}
		}
		if m := n.MemoizationStatus; m != nil {
			fmt.Fprintf(&p.out, " %s/%s hit=%t", m.CacheName, m.Key, m.Hit)
		}
		if n.Type == wf.NodePod && !strings.HasSuffix(n.Progress, "/1") && n.Progress != "" {
			fmt.Fprintf(&p.out, " progress=%s of %s", n.Progress, p.run.Workflow.Status.Progress)
		}
		if s := n.SynchronizationStatus; s != nil {
			fmt.Fprintf(&p.out, " waiting=%s", s.Waiting)
		}
		if len(n.Children) > 0 {
			fmt.Fprintf(&p.out, " children=[%s]", names(n.Children))
		}
		if len(n.OutboundNodes) > 0 {
			fmt.Fprintf(&p.out, " outbound=[%s]", names(n.OutboundNodes))
		}
		if n.Message != "" {
			fmt.Fprintf(&p.out, " %q", n.Message)
		}
		p.out.WriteString("\n")
	}
	if s := p.run.Workflow.Status.Synchronization; s != nil {
		text, err := json.Marshal(s)
		p.must(err)
		fmt.Fprintf(&p.out, "locks %s\n", text)
	}
	for _, c := range p.run.Workflow.Status.Conditions {
		if c.Message != "" {
			fmt.Fprintf(&p.out, "%s: %s\n", c.Type, c.Message)
		}
	}
	if s := p.run.Workflow.Status; s.Outputs != nil {
		for _, o := range s.Outputs.Parameters {
			fmt.Fprintf(&p.out, "workflow output %s=%s\n", o.Name, *o.Value)
		}
	}
}

// again returns a new Run from the status as it would be read from the API server.
func (p *player) again() *Run {
	text, err := json.Marshal(p.run.Workflow)
	p.must(err)
	w := &wf.Workflow{}
	p.must(json.Unmarshal(text, w))
	return New(w, p.config())
}

func (p *player) states() []Event {
	var events []Event
	for _, id := range sortedKeys(p.pods) {
		events = append(events, p.pods[id])
	}
	return events
}

// check checks the invariants of the status.
func (p *player) check() {
	nodes := p.run.Workflow.Status.Nodes
	for id, n := range nodes {
		if id != wf.NodeID(p.run.Workflow.Name, n.Name) || id != n.ID {
			p.t.Errorf("node %s has id %s", n.Name, id)
		}
		for _, other := range append(append([]string{n.BoundaryID}, n.Children...), n.OutboundNodes...) {
			if _, found := nodes[other]; !found && other != "" {
				p.t.Errorf("node %s refers to %s, which does not exist", n.Name, other)
			}
		}
		if done := n.Phase.Fulfilled(); done == n.FinishedAt.IsZero() {
			p.t.Errorf("node %s is %s and finished at %s", n.Name, n.Phase, n.FinishedAt)
		}
		if p.run.Workflow.Status.Phase.Completed() && !n.Phase.Fulfilled() {
			p.t.Errorf("the workflow is done, node %s is %s", n.Name, n.Phase)
		}
	}
	again := p.again()
	before, err := json.Marshal(again.Workflow.Status)
	p.must(err)
	result := again.Step(p.now, p.states()...)
	after, err := json.Marshal(again.Workflow.Status)
	p.must(err)
	if len(result.Create)+len(result.Changed) > 0 || string(before) != string(after) {
		p.t.Errorf("a restart changes something: creates %v, changes %v\nbefore %s\nafter  %s", result.Create, result.Changed, before, after)
	}
}
