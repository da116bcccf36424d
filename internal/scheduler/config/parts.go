package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// weightMax is the largest weight of a score (see place.Options).
const weightMax = 1000

// said is a verdict with its reason.
type said struct {
	verdict Verdict
	text    string
}

// action is what Lockstep does of an action.
type action struct {
	said
	preempts, reclaims, vacates bool
}

var actions = map[string]action{
	"enqueue":  {said: said{Differs, "PodGroups that announce minResources start when these are free; gangs of Jobs need no such step"}},
	"dequeue":  {said: said{Needless, "a gang that does not fit holds nothing back but what its queue's order says"}},
	"allocate": {said: said{verdict: Works}},
	"backfill": {said: said{Works, "pods without requests are placed together with the others"}},
	"preempt": {
		said:     said{Differs, "a gang that is evicted leaves as a whole, apart from pods above its minimum"},
		preempts: true, vacates: true,
	},
	"reclaim": {
		said:     said{Differs, "a queue claims back what its deserved and guarantee state or, with the plugin proportion, its weight gives it; gangs leave whole"},
		reclaims: true,
	},
	"gangpreempt": {said: said{Works, "the cheapest victims are found over all nodes"}, preempts: true},
	"gangreclaim": {said: said{Works, "the cheapest victims are found over all nodes"}, reclaims: true},
	"shuffle": {
		said:    said{Differs, "pods leave revocable zones whose hours are over, and nodes that are used much if another one takes them"},
		vacates: true,
	},
}

// pluginSays is what Lockstep does of a plugin and its arguments.
type pluginSays struct {
	said
	arguments map[string]said
	// read reads an argument that becomes a setting; it reports false for other arguments.
	read func(r *reader, path, key string, value *yaml.Node) bool
}

const ofCluster = "the API server and the kube-scheduler's own plugins do this for pods that need it"

var plugins = map[string]pluginSays{
	"priority":    {said: said{Works, "by PriorityClass, in each queue; also without this plugin"}},
	"gang":        {said: said{Works, "also without this plugin"}},
	"conformance": {said: said{Works, "also without this plugin"}},
	"drf": {said: said{Differs,
		"the dominant share decides between queues, and between the users of a queue with the annotation lockstep.dev/fair-share-by; else priority and age do"},
		read: readHalfLife},
	"proportion": {said: said{Works, "by the weights of queues that state no deserved; the action reclaim then goes by them, too"}, read: readHalfLife},
	"capacity": {said: said{Works, "by deserved, guarantee and capability of the queues that state them"}, arguments: map[string]said{
		"ancestorReclaimLevel":                     {Needless, "rights to reclaim count on every level of the tree"},
		"capacity.DynamicResourceAllocationEnable": {Missing, "resource claims are not counted by queues"},
		"capacity.DRAConsumableCapacityEnable":     {Missing, "resource claims are not counted by queues"},
	}, read: readHalfLife},
	"overcommit": {said: said{Differs, "what PodGroups announce in minResources must be free; the cluster is not overcommitted"},
		arguments: map[string]said{"overcommit-factor": {Missing, "what PodGroups announce in minResources must be free"}}},
	"predicates": {said: said{Works, ofCluster}, arguments: map[string]said{
		"predicate.CacheEnable":                     {Needless, "equal pods are always filtered once"},
		"predicate.DynamicResourceAllocationEnable": {Needless, "resource claims are always allocated, if the API server has them"},
	}, read: readPredicates},
	"nodeorder": {said: said{Works, "scores are the kube-scheduler's"}, arguments: map[string]said{
		"imagelocality.weight":     {Missing, "images on nodes do not count"},
		"podaffinity.weight":       {Differs, "the weight is always 2"},
		"podtopologyspread.weight": {Differs, "the weight is always 2"},
	}, read: readNodeOrder},
	"binpack": {said: said{Works, "nodes that are fullest are preferred; leastrequested of nodeorder does not apply then"}, read: readBinpack},
	"resource-strategy-fit": {said: said{Works, "each resource prefers full or empty nodes; binpack does not apply then"},
		read: readStrategyFit},
	"sla": {said: said{Differs, "capacity is kept for the first gang of a queue, and for gangs with the annotation, once they have waited so long"},
		read: readSLA},
	"tdm": {said: said{Differs,
		"pods of a job leave a zone together when its hours are over, as far as budgets allow; other pods keep their order and rights"},
		read: readTDM},
	"task-topology": {said: said{Differs,
		"the annotations of Jobs become preferences of their pods, also without this plugin; those of PodGroups have no effect"},
		arguments: map[string]said{"task-topology.weight": {Differs, "the preferences have the weight of the kube-scheduler's, 2"}}},
	"numa-aware": {said: said{Differs,
		"CPUs are chosen with the node, by topologyPolicy and the CPU annotations; nodes need an agent (docs/cpu-topology.md)"},
		arguments: map[string]said{"weight": {Needless, "the choice of CPUs is no score"}}},
	"network-topology-aware": {said: said{Works, "by networkTopology of Jobs and PodGroups; also without this plugin"},
		arguments: map[string]said{"weight": {Needless, "the smallest domain with room comes before all scores of nodes"}},
		read:      readDomains},
	"deviceshare": {said: said{Differs, "what nodes advertise as extended resources is counted per node; no device is chosen for a share of one"}},
	"usage": {said: said{Differs, "the use that is counted is the last one that was measured; it moves no pods"}, arguments: map[string]said{
		"estimator": {Missing, "pods that have just been placed count once their use is measured"},
	}, read: readUsage},
	"rescheduling": {said: said{Differs,
		"pods that their gangs can spare are moved, at most 10 at a time, and only if a node that is used little takes them"},
		arguments: map[string]said{"metricsPeriod": {Needless, "the use of nodes is an average of the source's own period"}},
		read:      readRescheduling},
	"nodegroup": {said: said{Differs, "queues without affinity may use all nodes; preferred groups do not exclude others"},
		arguments: map[string]said{
			"strict":               {Differs, "queues without affinity may use all nodes"},
			"enablePreferredOrder": {Missing, "preferred groups are equal"},
		}},
	"fairshare": {said: said{Differs,
		"queues, and namespaces in queues with the annotation lockstep.dev/fair-share-by, take turns by what they have used; priorities come first"},
		arguments: map[string]said{
			"fairshare.targetQueues":         {Differs, "the queues are those with the annotation lockstep.dev/fair-share-by: namespace"},
			"fairshare.resourceKey":          {Differs, "the resource counts of which somebody uses the largest part"},
			"fairshare.enableEnqueueGate":    {Missing, "nobody is held up while there is room"},
			"fairshare.persistState":         {Needless, "what was used is kept in the status of queues"},
			"fairshare.stateNamespace":       {Needless, "what was used is kept in the status of queues"},
			"fairshare.stateConfigMap":       {Needless, "what was used is kept in the status of queues"},
			"fairshare.flushIntervalSeconds": {Needless, "what was used is kept in the status of queues"},
		}, read: readFairShare},
	"pdb": {said: said{Works, "also without this plugin"}},
	"cdp": {said: said{Works, "volcano.sh/cooldown-time; also without this plugin"}},
	"resourcequota": {said: said{Differs,
		"the API server refuses pods above a quota; a gang below its minimum is rolled back and waits"}},
	"extender": {said: said{Missing, "the scheduler makes no requests to other programs"}},
}

// readPredicates reads switches of filters. All filters apply to the pods that ask for them; a filter
// that a configuration switches off would let pods go where their manifests forbid it.
func readPredicates(r *reader, path, key string, value *yaml.Node) bool {
	name, found := strings.CutSuffix(key, "Enable")
	if !found || !slices.Contains(filters, strings.TrimPrefix(name, "predicate.")) {
		return false
	}
	on, err := strconv.ParseBool(value.Value)
	if err != nil {
		r.fail(path, "%q is neither true nor false", value.Value)
		return true
	}
	if on {
		r.add(path, key, Works, "")
	} else {
		r.add(path, key, Differs, "filters cannot be switched off: they apply to the pods that ask for them")
	}
	return true
}

// filters are the switches of the plugin predicates whose filters Lockstep has.
var filters = []string{
	"NodeAffinity", "NodePorts", "TaintToleration", "PodAffinity", "NodeVolumeLimits", "VolumeZone", "PodTopologySpread",
	"VolumeBinding",
}

// weights are the arguments of nodeorder and binpack.
type weights struct {
	place.Weights
	set         bool // nodeorder says something
	least, most int64
	binpack     int64
	resources   []place.ResourceWeight
	fit         []place.ResourceWeight // of resource-strategy-fit
}

// binpackResources returns the resources that binpack scores: cpu and memory unless their weight is
// 0, and those of binpack.resources.
func (w *weights) binpackResources() []place.ResourceWeight {
	if len(w.resources) == 0 {
		return nil
	}
	list := slices.Clone(w.resources)
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		if !slices.ContainsFunc(list, func(r place.ResourceWeight) bool { return r.Name == name }) {
			list = slices.Insert(list, 0, place.ResourceWeight{Name: name, Weight: 1})
		}
	}
	return list
}

// weight sets *to to an argument that is a weight.
func (r *reader) weight(path string, value *yaml.Node, to *int64) {
	n, err := strconv.ParseInt(value.Value, 10, 64) // the value may be quoted
	if err != nil || n < 0 || n > weightMax {
		r.fail(path, "%q is not a whole number from 0 to %d", value.Value, weightMax)
		return
	}
	*to = n
	r.add(path, path[strings.LastIndexByte(path, '[')+1:len(path)-1], Works, "")
}

func readNodeOrder(r *reader, path, key string, value *yaml.Node) bool {
	w := &r.weights
	w.set = true
	switch key {
	case "leastrequested.weight":
		r.weight(path, value, &w.least)
	case "mostrequested.weight":
		r.weight(path, value, &w.most)
	case "balancedresource.weight":
		r.weight(path, value, &w.Balanced)
	case "nodeaffinity.weight":
		r.weight(path, value, &w.NodeAffinity)
	case "tainttoleration.weight":
		r.weight(path, value, &w.Taints)
	default:
		return false
	}
	return true
}

func readBinpack(r *reader, path, key string, value *yaml.Node) bool {
	w := &r.weights
	const prefix, list = "binpack.", "binpack.resources"
	if key == "binpack.weight" {
		r.weight(path, value, &w.binpack)
		return true
	}
	name, found := strings.CutPrefix(key, prefix)
	if key == list {
		for resource := range strings.SplitSeq(value.Value, ",") {
			if resource = strings.TrimSpace(resource); resource != "" {
				w.addResource(corev1.ResourceName(resource), 1)
			}
		}
		r.add(path, key, Works, "")
		return true
	}
	if resource, ok := strings.CutPrefix(key, list+"."); ok {
		name = resource
	} else if name != "cpu" && name != "memory" {
		return false
	}
	weight := int64(1)
	r.weight(path, value, &weight)
	w.addResource(corev1.ResourceName(name), weight)
	return found
}

// readStrategyFit reads which resources prefer full nodes, and with which weights.
func readStrategyFit(r *reader, path, key string, value *yaml.Node) bool {
	w := &r.weights
	switch key {
	case "resourceStrategyFitWeight":
		w.set = true
		r.weight(path, value, &w.least)
		return true
	case "resources":
	default:
		return false
	}
	var resources map[string]struct {
		Type   string    `yaml:"type"`
		Weight yaml.Node `yaml:"weight"`
	}
	if err := value.Decode(&resources); err != nil {
		r.fail(path, "want resources with a type and a weight each: %s", err)
		return true
	}
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		f := resources[name]
		at := path + "." + name
		weight := place.ResourceWeight{Name: corev1.ResourceName(name), Weight: 1, Opposite: f.Type == "MostAllocated"}
		if f.Type != "MostAllocated" && f.Type != "LeastAllocated" {
			r.fail(at, "%q is neither MostAllocated nor LeastAllocated", f.Type)
			continue
		}
		if n := f.Weight; n.Kind != 0 {
			v, err := strconv.ParseInt(n.Value, 10, 64)
			if err != nil || v < 0 || v > weightMax {
				r.fail(at, "%q is not a whole number from 0 to %d", n.Value, weightMax)
				continue
			}
			weight.Weight = v
		}
		w.fit = append(w.fit, weight)
	}
	r.add(path, key, Works, "")
	return true
}

// addResource sets the weight of a resource. A weight that is set explicitly comes after the list of
// resources, because arguments are read in order of their names.
func (w *weights) addResource(name corev1.ResourceName, weight int64) {
	for i := range w.resources {
		if w.resources[i].Name == name {
			w.resources[i].Weight = weight
			return
		}
	}
	w.resources = append(w.resources, place.ResourceWeight{Name: name, Weight: weight})
}

// readDomains reads how much of the resources of a domain counts, which placement does not ask.
func readDomains(r *reader, path, key string, _ *yaml.Node) bool {
	if !strings.HasPrefix(key, "hypernode.binpack.") {
		return false
	}
	r.add(path, key, Needless, "of equal domains the one with room for fewest more pods is preferred")
	return true
}

// readHalfLife reads an argument that Volcano does not have, and ignores.
func readHalfLife(r *reader, path, key string, value *yaml.Node) bool {
	if key != "lockstep.usage-half-life" {
		return false
	}
	d, err := time.ParseDuration(value.Value)
	if err != nil || d <= 0 {
		r.fail(path, "%q is no positive duration", value.Value)
		return true
	}
	r.setHalfLife(path, key, d)
	return true
}

// setHalfLife sets the half-life of usage. Plugins that name it must name the same one.
func (r *reader) setHalfLife(path, key string, d time.Duration) {
	if known := r.settings.UsageHalfLife; known > 0 && known != d {
		r.fail(path, "another plugin says %v", known)
		return
	}
	r.settings.UsageHalfLife = d
	r.add(path, key, Works, "")
}

// fairShareHalfLife is the half-life of the plugin fairshare if it names none.
const fairShareHalfLife = 4 * time.Hour

// readFairShare reads the half-life, in minutes, and resources of single queues.
func readFairShare(r *reader, path, key string, value *yaml.Node) bool {
	if queue, found := strings.CutPrefix(key, "fairshare.resourceKey."); found && queue != "" {
		r.add(path, key, Differs, "the resource counts of which somebody uses the largest part")
		return true
	}
	if key != "fairshare.halfLifeMinutes" {
		return false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value.Value), 10, 32) // the value may be quoted
	if err != nil || n <= 0 {
		r.fail(path, "%q is no positive number of minutes", value.Value)
		return true
	}
	r.setHalfLife(path, key, time.Duration(n)*time.Minute)
	return true
}

func readSLA(r *reader, path, key string, value *yaml.Node) bool {
	if key != "sla-waiting-time" {
		return false
	}
	d, err := time.ParseDuration(value.Value)
	if err != nil || d <= 0 {
		r.fail(path, "%q is no positive duration", value.Value)
		return true
	}
	r.settings.OverdueAfter = d
	r.add(path, key, Works, "")
	return true
}

// readTDM reads the hours of revocable zones, and how often pods are evicted from those that are closed.
func readTDM(r *reader, path, key string, value *yaml.Node) bool {
	zone, found := strings.CutPrefix(key, "tdm.revocable-zone.")
	if found {
		window, err := zones.Parse(value.Value)
		if errs := validation.IsValidLabelValue(zone); err == nil && (zone == "" || len(errs) > 0) {
			err = fmt.Errorf("%q is no name of a zone, which is the value of a label", zone)
		}
		if err != nil {
			r.fail(path, "%s", err)
			return true
		}
		r.settings.Zones.Windows[zone] = window
		r.add(path, key, Works, "")
		return true
	}
	if key != "tdm.evict.period" {
		return false
	}
	d, err := time.ParseDuration(value.Value)
	if err != nil || d < time.Second {
		r.fail(path, "%q is no duration of a second or more", value.Value)
		return true
	}
	r.settings.Zones.EvictEvery = d
	r.add(path, key, Works, "")
	return true
}

// Actions returns the names of the actions that configurations may have.
func Actions() []string { return slices.Sorted(maps.Keys(actions)) }

// Plugins returns the names of the plugins that configurations may have.
func Plugins() []string { return slices.Sorted(maps.Keys(plugins)) }
