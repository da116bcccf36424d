package analyse

import "time"

// Event is one thing that the API server did, or what a watch showed of it.
type Event struct {
	// Time is when the server had answered, or when the watch delivered.
	Time time.Time `json:"time"`
	// Received is when the request reached the server. From a watch it equals Time.
	Received time.Time `json:"received"`
	// Actor is who asked: client, manager, controllerManager, scheduler, nodes, apiserver, other.
	Actor string `json:"actor"`
	// Verb is create, update, patch, delete or deletecollection; from a watch also finish, a pod that succeeded or failed.
	Verb string `json:"verb"`
	// Resource is the plural name, with its group after a dot when it has one: pods, jobs.batch.volcano.sh.
	Resource string `json:"resource"`
	// Sub is the subresource, for example status or binding.
	Sub       string `json:"sub,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Node is the node that a create or a binding of a pod gave it.
	Node string `json:"node,omitempty"`
	// Code is the HTTP status.
	Code int `json:"code"`
}

// OK says that the server did what was asked.
func (e *Event) OK() bool { return e.Code >= 200 && e.Code < 300 }

// Kind is how the event counts among writes: resource/subresource, or resource/verb.
func (e *Event) Kind() string {
	if e.Sub != "" {
		return e.Resource + "/" + e.Sub
	}
	return e.Resource + "/" + e.Verb
}

// Resources is what a pod takes of a node, or what a node has.
type Resources struct {
	MilliCPU    int64
	MemoryBytes int64
	Pods        int64
}

// Job is what was asked for.
type Job struct {
	Name string
	// Pods is how many the job wants; Min is how many of them must hold nodes together, or none.
	Pods, Min int
}

// Pod is a pod at rest.
type Pod struct {
	Name, Job string
	// Index is the pod's index in its job, or -1 in systems whose pods have none.
	Index   int
	Node    string
	Phase   string
	Request Resources
	// Finished is when the pod succeeded or failed; zero while it has not.
	Finished time.Time
}

// JobState is what a job's own status says at rest.
type JobState struct {
	Name  string
	Phase string
	// Running, Succeeded and Failed are the status' counts of pods.
	Running, Succeeded, Failed int
	// Explained says that the status carries a reason or a message for what is not as asked.
	Explained bool
}

// Input is everything that Analyse looks at.
type Input struct {
	// Events need no order; Analyse sorts them by time.
	Events []Event
	// Namespace is where the measured jobs live; JobResource is their Resource.
	Namespace, JobResource string
	Jobs                   []Job
	// Pods and States are the namespace at rest.
	Pods   []Pod
	States []JobState
	Nodes  map[string]Resources
	// Request is what a pod takes that is gone at rest.
	Request Resources
	// Identify tells the job and index of a pod that is gone at rest from its name. The index is -1 where pods have none.
	Identify func(pod string) (job string, index int)
	// System holds the actors under test: their writes are what Result.Writes counts.
	System map[string]bool
	// Heartbeats holds resources that are written in time with a clock and not with the load (leases). They are left
	// out of Result.Writes and kept in WritesByActor.
	Heartbeats map[string]bool
}

// Result is what a run was like. Durations are in seconds, counted from Start.
type Result struct {
	// Start is when the first job's create reached the server.
	Start time.Time
	// Pods is how many were asked for; Created and Scheduled how many of the jobs' pods were at least once.
	Pods, Created, Scheduled int
	// Failed counts pods that failed, and those asked for that have no node at rest.
	Failed int
	// JobsSeconds is until the last job was created; CreateSeconds and ScheduleSeconds until the last pod was CREATED and
	// SCHEDULED.
	JobsSeconds, CreateSeconds, ScheduleSeconds float64
	// FirstScheduledSeconds is until the first pod was SCHEDULED.
	FirstScheduledSeconds float64
	// Writes counts the system's writes by kind, the refused ones included, from Start to the end of the events.
	Writes map[string]int
	// WritesPerPod is their sum over Pods; WritesPerPodUntilScheduled counts those up to the last SCHEDULED only.
	WritesPerPod, WritesPerPodUntilScheduled float64
	// WritesByActor has everybody's, heartbeats included.
	WritesByActor map[string]map[string]int
	// Refused counts the system's writes that the server did not carry out, by kind and HTTP status; nil when there are none.
	Refused map[string]int
	// LatencyMs is from a job's creation to each of its pods being SCHEDULED.
	LatencyMs Percentiles
	Stalls    Stalls
	Curves    Curves
	Invariants
}

// Percentiles of a distribution.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Writes are writes by kind, the refused ones included.
type Writes struct {
	ByKind map[string]int `json:"writes"`
	Total  int            `json:"writesTotal"`
	// Refused are those that the server did not carry out, by kind and HTTP status; nil when there are none.
	Refused map[string]int `json:"refused,omitempty"`
}

// Stalls are the gaps longer than StallThreshold between one SCHEDULED and the next.
type Stalls struct {
	Count int
	// LongestSeconds is the longest gap, whether it counts as a stall or not.
	LongestSeconds float64
	// AtSeconds says when each stall began; at most 20.
	AtSeconds []float64
}

// StallThreshold is the shortest gap that is a stall.
const StallThreshold = time.Second

// Curves are cumulative counts and rates over time.
type Curves struct {
	Created, Scheduled Curve
	// CreatedPerSecond and ScheduledPerSecond have one entry for each second from Start.
	CreatedPerSecond, ScheduledPerSecond []int
}

// Curve is a cumulative count: Count[i] had happened AtSeconds[i] after the start. It has at most curvePoints points, of
// which the last is exact.
type Curve struct {
	AtSeconds []float64 `json:"t"`
	Count     []int     `json:"n"`
}

// Invariants is the outcome of the checks.
type Invariants struct {
	// Checked is how many facts were checked.
	Checked int
	// Violations are sentences for people; at most maxViolations, the last of which says how many more there are.
	Violations []string
	// LongestPartialGangSeconds is the longest time between a gang's first pod and the pod that made it whole. It is
	// no violation: creating a gang takes time. At rest, a gang must be whole or hold nothing.
	LongestPartialGangSeconds float64
}
