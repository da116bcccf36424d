package analyse

import "time"

// Event is one write that the API server processed, or one change that a watch showed.
type Event struct {
	// Time is when the server had answered, or when the watch delivered the change.
	Time time.Time `json:"time"`
	// Received is when the request reached the server. For a watch it equals Time.
	Received time.Time `json:"received"`
	// Actor is the client: client, manager, controllerManager, scheduler, nodes, apiserver, other.
	Actor string `json:"actor"`
	// Verb is create, update, patch, delete or deletecollection; from a watch also finish: the pod
	// succeeded or failed.
	Verb string `json:"verb"`
	// Resource is the plural name, followed by a dot and the group if there is one: pods,
	// jobs.batch.volcano.sh.
	Resource string `json:"resource"`
	// Sub is the subresource, for example status or binding.
	Sub       string `json:"sub,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Node is the node that a create or a binding assigned to a pod.
	Node string `json:"node,omitempty"`
	// Ended is true if the write, or the change, gave a pod the phase Succeeded or Failed.
	Ended bool `json:"ended,omitempty"`
	// Code is the HTTP status code, and Cause the server's message if it refused the request.
	Code  int    `json:"code"`
	Cause string `json:"cause,omitempty"`
}

// OK reports whether the request succeeded.
func (e *Event) OK() bool { return e.Code >= 200 && e.Code < 300 }

// Kind returns the key under which the event is counted among writes: resource/subresource, or
// resource/verb.
func (e *Event) Kind() string {
	if e.Sub != "" {
		return e.Resource + "/" + e.Sub
	}
	return e.Resource + "/" + e.Verb
}

// Resources are the requests of a pod, or the allocatable resources of a node.
type Resources struct {
	MilliCPU    int64
	MemoryBytes int64
	Pods        int64
}

// Job is a requested job.
type Job struct {
	Name string
	// Pods is the number of pods of the job. Min is its minimum as a gang: at rest either no pod
	// has a node, or at least Min pods have one.
	Pods, Min int
	// Part is the index of the part of the load that the job is of: Input.Parts.
	Part int
}

// Pod is a pod at rest.
type Pod struct {
	Name, Job string
	// Index is the pod's index in its job, or -1 in systems without indexes.
	Index   int
	Node    string
	Phase   string
	Request Resources
	// Finished is when the pod succeeded or failed; zero if it has not.
	Finished time.Time
}

// JobState is the content of a job's own status at rest.
type JobState struct {
	Name  string
	Phase string
	// Running, Succeeded and Failed are the counts of pods in the status, or Unknown if the status
	// has no such count.
	Running, Succeeded, Failed int
	// Explained is true if the status gives a reason or a message for what is missing.
	Explained bool
}

// Unknown is a count that a status does not have.
const Unknown = -1

// Input is the input of Analyse.
type Input struct {
	// Events may be in any order; Analyse sorts them by time.
	Events []Event
	// Namespace is the namespace of the measured jobs; JobResource is their Event.Resource.
	Namespace, JobResource string
	Jobs                   []Job
	// Parts are the parts of a load whose jobs are not all alike; nil if they are.
	Parts []Part
	// Settling is the time in which queues may come to their shares: see Shares.
	Settling time.Duration
	// Pods and States are the state of the namespace at rest.
	Pods   []Pod
	States []JobState
	Nodes  map[string]Resources
	// Request is the request of pods that no longer exist at rest.
	Request Resources
	// Identify returns the job and index of a pod from its name, for pods that no longer exist at
	// rest. The index is -1 in systems without indexes.
	Identify func(pod string) (job string, index int)
	// OfLoad, if set, reports whether a pod is of the load, from its name. Other pods are ignored,
	// but the writes that the system makes for them count.
	OfLoad func(pod string) bool
	// Unfinished says that the system was not at rest when its state was read, because the time for
	// the load had run out. What only holds at rest is not checked then.
	Unfinished bool
	// System are the actors under test: Result.Writes counts their writes.
	System map[string]bool
	// Heartbeats are resources that are written at fixed intervals, independent of the load
	// (leases). Result.Writes leaves them out; WritesByActor includes them.
	Heartbeats map[string]bool
}

// Part is a part of a load.
type Part struct {
	Name string
	// Weight is the weight of the queue that the part's jobs are in; 0 if they are in none.
	Weight int
}

// Result is the result of a run. Durations are in seconds, counted from the moment at which the first
// job's create reached the server.
type Result struct {
	// Pods is the number of requested pods; Created and Scheduled count the jobs' pods that were
	// CREATED and SCHEDULED at least once.
	Pods      int `json:"pods"`
	Created   int `json:"created"`
	Scheduled int `json:"scheduled"`
	// Failed counts pods that failed, and requested pods that have no node at rest.
	Failed int `json:"failed"`
	// JobsSeconds is the time until the last job was created; CreateSeconds and ScheduleSeconds
	// until the last pod was CREATED and SCHEDULED.
	JobsSeconds     float64 `json:"jobsSeconds"`
	CreateSeconds   float64 `json:"createSeconds"`
	ScheduleSeconds float64 `json:"scheduleSeconds"`
	// FirstScheduledSeconds is the time until the first pod was SCHEDULED.
	FirstScheduledSeconds float64 `json:"firstScheduledSeconds"`
	// Writes counts the system's writes by kind, refused ones included and heartbeats left out, from
	// the start to the end of the events.
	Writes map[string]int `json:"writes"`
	// WritesPerPod is their sum divided by Pods; WritesPerPodUntilScheduled counts only writes up
	// to the last SCHEDULED.
	WritesPerPod               float64 `json:"writesPerPod"`
	WritesPerPodUntilScheduled float64 `json:"writesPerPodUntilScheduled"`
	// WritesByActor counts the writes of all actors, heartbeats included.
	WritesByActor map[string]map[string]int `json:"writesByActor,omitempty"`
	// Refused counts the system's writes that the server refused, by kind and HTTP status; nil if
	// there are none.
	Refused map[string]int `json:"refused,omitempty"`
	// Causes counts them by kind and message, of at most maxCauses messages; nil if there are none.
	Causes map[string]int `json:"causes,omitempty"`
	// LatencyMs is the time from a job's creation until each of its pods was SCHEDULED.
	LatencyMs Percentiles `json:"latencyMs"`
	Stalls    Stalls      `json:"stalls"`
	// Contention is nil if every pod was SCHEDULED by its create.
	Contention *Contention `json:"contention,omitempty"`
	// WaitingMax is the most pods at a time whose job had been created and that had no node, and
	// PendingMax the most of them that existed as pods in the API server.
	WaitingMax int `json:"waitingMax"`
	PendingMax int `json:"pendingMax"`
	// Parts are the results of the parts of the load; nil if all jobs are alike.
	Parts []PartResult `json:"parts,omitempty"`
	// Shares are what the queues had; nil without queues.
	Shares     *Shares    `json:"shares,omitempty"`
	Invariants Invariants `json:"invariants"`
	Curves     *Curves    `json:"curves,omitempty"`
}

// Percentiles are percentiles of a distribution.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Writes are counts of writes by kind, refused ones included.
type Writes struct {
	ByKind map[string]int `json:"writes"`
	Total  int            `json:"writesTotal"`
	// Refused counts the refused writes by kind and HTTP status; nil if there are none.
	Refused map[string]int `json:"refused,omitempty"`
}

// Stalls are gaps longer than StallThreshold between consecutive SCHEDULED pods.
type Stalls struct {
	Count int `json:"count"`
	// LongestSeconds is the longest gap, even if it is not a stall.
	LongestSeconds float64 `json:"longestSeconds"`
	// AtSeconds are the times at which stalls began, at most 20.
	AtSeconds []float64 `json:"atSeconds,omitempty"`
}

// StallThreshold is the length above which a gap is a stall.
const StallThreshold = time.Second

// Curves are cumulative counts and rates over time.
type Curves struct {
	Created   Curve `json:"created"`
	Scheduled Curve `json:"scheduled"`
	// CreatedPerSecond and ScheduledPerSecond have one entry per second.
	CreatedPerSecond   []int `json:"createdPerSecond"`
	ScheduledPerSecond []int `json:"scheduledPerSecond"`
	// Waiting and Pending are the pods of Result.WaitingMax and PendingMax over time.
	Waiting Curve `json:"waiting"`
	Pending Curve `json:"pending"`
	// Held are the places that the pods of each part had over time; nil if all jobs are alike.
	Held []Curve `json:"held,omitempty"`
}

// Curve is a cumulative count: Count[i] events had happened AtSeconds[i] after the start. It has
// about curvePoints points; the last one is exact.
type Curve struct {
	AtSeconds []float64 `json:"t"`
	Count     []int     `json:"n"`
}

// Invariants is the result of the checks.
type Invariants struct {
	// Checked is the number of facts checked.
	Checked int `json:"checked"`
	// Violations are sentences for people, at most maxViolations; the last one says how many more
	// there are.
	Violations []string `json:"violations"`
	// LongestPartialGangSeconds is the longest time between a gang's first pod and the pod that
	// completed the gang's minimum. That is not a violation, because creating a gang takes time. At
	// rest, a gang must be complete or hold nothing.
	LongestPartialGangSeconds float64 `json:"longestPartialGangSeconds"`
}
