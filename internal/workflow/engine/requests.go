package engine

import (
	"encoding/json"
	"fmt"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// LockState answers a request for locks, at once or later.
type LockState locks.State

func (e LockState) key() string { return "lock/" + e.Holder }

// CacheLookup asks what a cache has for a node.
type CacheLookup struct{ NodeID, ConfigMap, Key string }

// CacheAnswer answers a CacheLookup.
type CacheAnswer struct {
	NodeID  string
	Found   bool
	Outputs *wf.Outputs
	Created time.Time
	Err     error // the cache could not be read: the node ends in Error
}

func (e CacheAnswer) key() string { return "cache/" + e.NodeID }

// CacheStore asks to keep a node's outputs.
type CacheStore struct {
	ConfigMap, Key, NodeID string
	Outputs                *wf.Outputs
	Created                time.Time
}

// cacheEntry is the value of a key in a cache's ConfigMap.
type cacheEntry struct {
	NodeID            string      `json:"nodeID"`
	Outputs           *wf.Outputs `json:"outputs"`
	CreationTimestamp time.Time   `json:"creationTimestamp"`
	LastHitTimestamp  time.Time   `json:"lastHitTimestamp"`
}

// Entry returns the text to write under Key in the cache's ConfigMap.
func (s CacheStore) Entry() string {
	text, _ := json.Marshal(cacheEntry{s.NodeID, s.Outputs, s.Created, s.Created})
	return string(text)
}

// Answer reads the text under Key in the cache's ConfigMap; found says that there is one.
func (l CacheLookup) Answer(text string, found bool) CacheAnswer {
	if !found {
		return CacheAnswer{NodeID: l.NodeID}
	}
	var e cacheEntry
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return CacheAnswer{NodeID: l.NodeID, Err: fmt.Errorf("cache entry %s of ConfigMap %s: %w", l.Key, l.ConfigMap, err)}
	}
	return CacheAnswer{NodeID: l.NodeID, Found: true, Outputs: e.Outputs, Created: e.CreationTimestamp}
}

// MetricKind is a kind of metric.
type MetricKind string

const (
	MetricCounter   MetricKind = "Counter"
	MetricGauge     MetricKind = "Gauge"
	MetricHistogram MetricKind = "Histogram"
)

// Sample is a value for a metric that a workflow emits.
type Sample struct {
	Owner      string // the node's id, the workflow's name for its own
	Name, Help string
	Kind       MetricKind
	Labels     []wf.MetricLabel
	Value      float64
	Operation  string    // of a gauge: Set, Add or Sub
	Buckets    []float64 // of a histogram
	// Since is set for a gauge in real time: until the owner's next sample of that name its value is the seconds since then.
	Since time.Time
}
