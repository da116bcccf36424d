package config

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	yaml "go.yaml.in/yaml/v3"
)

// readUsage reads the weights and thresholds of the use of nodes.
func readUsage(r *reader, path, key string, value *yaml.Node) bool {
	u := r.settings.Usage
	switch key {
	case "usage.weight":
		r.weight(path, value, &u.Weight)
	case "cpu.weight":
		r.weight(path, value, &u.CPUWeight)
	case "memory.weight":
		r.weight(path, value, &u.MemoryWeight)
	case "thresholds":
		r.thresholds(path, value, map[string]*float64{"cpu": &u.CPUMax, "mem": &u.MemoryMax, "memory": &u.MemoryMax})
	default:
		return false
	}
	return true
}

// thresholds reads percentages by the names of resources.
func (r *reader) thresholds(path string, value *yaml.Node, to map[string]*float64) {
	var of map[string]yaml.Node
	if err := value.Decode(&of); err != nil {
		r.fail(path, "want percentages by resource: %s", err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		node := of[name]
		r.percentage(path+"."+name, name, &node, to)
	}
}

// percentage sets the percentage of a resource.
func (r *reader) percentage(at, name string, value *yaml.Node, to map[string]*float64) {
	if to[name] == nil {
		r.add(at, name, Missing, "the use of this resource is not read")
		return
	}
	percent, err := strconv.ParseFloat(value.Value, 64)
	if err != nil || !(percent >= 0 && percent <= 100) {
		r.fail(at, "%q is no percentage from 0 to 100", value.Value)
		return
	}
	*to[name] = percent
	r.add(at, name, Works, "")
}

// metricsAPIType is the type of metrics that stands for the API metrics.k8s.io. Volcano does not have
// it.
const metricsAPIType = "metrics.k8s.io"

// intervalMin is the least interval at which the use of nodes is read.
const intervalMin = time.Second

// metrics reads where the use of nodes is measured.
func (r *reader) metrics(section map[string]yaml.Node) {
	u := r.settings.Usage
	if u == nil {
		r.add("metrics", "metrics", Needless, "no plugin that is configured reads the use of nodes")
		return
	}
	kind := "prometheus"
	if node, set := section["type"]; set {
		kind = node.Value
	}
	address := ""
	if node, set := section["address"]; set {
		address = node.Value
	}
	for _, key := range sortedKeys(section) {
		at, node := "metrics."+key, section[key]
		switch key {
		case "type":
			r.metricsType(at, kind)
		case "address":
			if kind != "prometheus" {
				r.add(at, key, Needless, "the API server is asked for "+metricsAPIType)
				continue
			}
			if parsed, err := url.Parse(address); err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
				r.fail(at, "%q is no URL with http or https", address)
				continue
			}
			u.Source.Prometheus = address
			r.add(at, key, Works, "")
		case "interval":
			d, err := time.ParseDuration(node.Value)
			if err != nil || d < intervalMin {
				r.fail(at, "%q is no duration of a second or more", node.Value)
				continue
			}
			u.Interval = d
			r.add(at, key, Works, "")
		case "tls":
			var tls struct {
				Insecure string `yaml:"insecureSkipVerify"`
			}
			err := node.Decode(&tls)
			if err == nil && tls.Insecure != "" {
				u.Source.Insecure, err = strconv.ParseBool(tls.Insecure)
			}
			if err != nil {
				r.fail(at, "insecureSkipVerify: %s", err)
				continue
			}
			r.add(at, key, Works, "")
		default:
			r.add(at, key, Missing, "Lockstep does not know this setting")
		}
	}
	if kind == "prometheus" && address == "" {
		r.fail("metrics", "prometheus needs an address")
	}
}

// metricsType reads the kind of server that has the measurements.
func (r *reader) metricsType(at, kind string) {
	switch kind {
	case "prometheus", metricsAPIType:
		r.add(at, kind, Works, "")
	case "prometheus_adapt", "prometheus_adaptor", "elasticsearch":
		r.add(at, kind, Differs, "the API server is asked for "+metricsAPIType+" instead")
	default:
		r.fail(at, "%q: want prometheus or %s", kind, metricsAPIType)
	}
}
