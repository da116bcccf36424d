package engine

import (
	"encoding/json"
	"fmt"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// LockState is the answer to a lock request. The request is answered at once or later, and again
// when its state changes.
type LockState locks.State

func (e LockState) key() string { return "lock/" + e.Holder }

// CacheLookup requests the cached outputs of a node.
type CacheLookup struct{ NodeID, ConfigMap, Key string }

// CacheAnswer is the answer to a CacheLookup.
type CacheAnswer struct {
	NodeID  string
	Found   bool
	Outputs *wf.Outputs
	Created time.Time
	Err     error // the cache could not be read; the node ends in Error
}

func (e CacheAnswer) key() string { return "cache/" + e.NodeID }

// CacheStore requests that a node's outputs be stored in a cache.
type CacheStore struct {
	ConfigMap, Key, NodeID string
	Outputs                *wf.Outputs
	Created                time.Time
}

// cacheEntry is the JSON value of a key in a cache's ConfigMap.
type cacheEntry struct {
	NodeID            string      `json:"nodeID"`
	Outputs           *wf.Outputs `json:"outputs"`
	CreationTimestamp time.Time   `json:"creationTimestamp"`
	LastHitTimestamp  time.Time   `json:"lastHitTimestamp"`
}

// Entry returns the value to write under Key in the cache's ConfigMap.
func (s CacheStore) Entry() string {
	text, _ := json.Marshal(cacheEntry{s.NodeID, s.Outputs, s.Created, s.Created})
	return string(text)
}

// Answer decodes text, the value of Key in the cache's ConfigMap. found is false if the ConfigMap
// has no such key.
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

// MetricKind is the kind of a metric.
type MetricKind string

const (
	MetricCounter   MetricKind = "Counter"
	MetricGauge     MetricKind = "Gauge"
	MetricHistogram MetricKind = "Histogram"
)

// Sample is one value of a metric that a workflow emits.
type Sample struct {
	Owner      string // the node's ID, or the workflow's name for its own metrics
	Name, Help string
	Kind       MetricKind
	Labels     []wf.MetricLabel
	Value      float64
	Operation  string    // of a gauge: Set, Add or Sub
	Buckets    []float64 // of a histogram
	// Since is set for a real-time gauge: until the owner's next sample of that name, the gauge's
	// value is the number of seconds since Since.
	Since time.Time
}
