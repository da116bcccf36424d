package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Figures are what the metrics of the processes say about one run, from the first job to the last
// pod.
type Figures struct {
	Server *Server `json:"apiServer,omitempty"`
	Etcd   *Etcd   `json:"etcd,omitempty"`
	// Controllers are the other processes, by name.
	Controllers map[string]*Controller `json:"controllers,omitempty"`
	// Missing says why there are no figures of a process.
	Missing map[string]string `json:"missing,omitempty"`
	// Samples are in the order of time.
	Samples []Sample `json:"samples,omitempty"`
}

// Server are the figures of the API server.
type Server struct {
	// Requests counts requests by verb and resource, and Codes by HTTP status, watches left out.
	Requests map[string]int `json:"requests"`
	Codes    map[string]int `json:"codes"`
	// Levels are the priority levels of the server's flow control (API Priority and Fairness) that
	// had requests.
	Levels map[string]Level `json:"priorityLevels,omitempty"`
	// PodCreates are the creates of pods, from the arrival of the request to its answer; they have no
	// P99Ms.
	PodCreates Histogram `json:"podCreates"`
	// CPUSeconds is the CPU time of the server, and CPUs how many it may use.
	CPUSeconds float64 `json:"cpuSeconds"`
	CPUs       int     `json:"cpus"`
	// Etcd are the server's own requests to etcd, of all operations.
	Etcd Histogram `json:"etcdRequests"`
	// Webhooks are the calls of admission webhooks, by name.
	Webhooks map[string]Histogram `json:"webhooks,omitempty"`
	// AuditErrors counts audit events that the server could not write.
	AuditErrors int `json:"auditErrors,omitempty"`
}

// Level is a priority level.
type Level struct {
	Requests int `json:"requests"`
	// Rejected counts requests that were refused with 429.
	Rejected int `json:"rejected,omitempty"`
	// Wait is the time that requests waited for their turn.
	Wait Histogram `json:"wait"`
}

// Etcd are the figures of etcd.
type Etcd struct {
	// Fsync are the writes of the log to the disk, Commit those of the database.
	Fsync  Histogram `json:"fsync"`
	Commit Histogram `json:"commit"`
	// DatabaseMiB is the size of the database at the end of the load.
	DatabaseMiB float64 `json:"databaseMiB"`
}

// Controller are the figures of a controller or scheduler.
type Controller struct {
	// Queues are the work queues that had items, by name.
	Queues map[string]Queue `json:"queues,omitempty"`
	// Throttled is the time that requests waited for the client's own limit (QPS and burst); it is
	// null if the process does not report it. Throttled.Count counts all requests.
	Throttled *Histogram `json:"throttled,omitempty"`
	// Requests counts the client's requests by HTTP status.
	Requests map[string]int `json:"requests,omitempty"`
	// Workers and MaxWorkers are the most workers that were active in a sample, and how many there
	// are, by controller; only processes made with controller-runtime report them.
	Workers map[string]Workers `json:"workers,omitempty"`
	// Goroutines is their number at the end of the load.
	Goroutines int `json:"goroutines,omitempty"`
}

// Queue are the figures of a work queue.
type Queue struct {
	Adds    int `json:"adds,omitempty"`
	Retries int `json:"retries,omitempty"`
	// DepthMax is the greatest depth in a sample.
	DepthMax int `json:"depthMax"`
	// Wait is the time of items in the queue, Work the time of their processing.
	Wait Histogram `json:"wait"`
	Work Histogram `json:"work"`
}

// Workers are the workers of a controller.
type Workers struct {
	Active int `json:"active"`
	Max    int `json:"max"`
}

// Sample is the state of the processes at one moment.
type Sample struct {
	// At is the time in seconds since the load began.
	At float64 `json:"t"`
	// CPU is how many CPUs each process used on average since the sample before.
	CPU map[string]float64 `json:"cpu"`
	// RSSMiB is the resident memory of each process.
	RSSMiB map[string]float64 `json:"rssMiB"`
	// Depths are the depths of the queues that are not empty, by process and queue: manager/writes.
	Depths map[string]int `json:"depths,omitempty"`
}

// used are the metrics that the figures are computed from.
var used = func() map[string]bool {
	out := map[string]bool{}
	for _, name := range []string{
		"apiserver_request_total", "apiserver_flowcontrol_dispatched_requests_total", "apiserver_flowcontrol_rejected_requests_total",
		"apiserver_audit_error_total", "apiserver_audit_requests_rejected_total", "apiserver_resource_objects",
		"apiserver_storage_size_bytes", "apiserver_storage_db_total_size_in_bytes",
		"etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes", "go_goroutines", "process_resident_memory_bytes", "process_cpu_seconds_total", "go_sched_gomaxprocs_threads", "apiserver_request_duration_seconds_sum", "apiserver_request_duration_seconds_count",
		"workqueue_depth", "workqueue_adds_total", "workqueue_retries_total", "rest_client_requests_total",
		"controller_runtime_active_workers", "controller_runtime_max_concurrent_reconciles",
		"scheduler_pending_pods", "lockstep_apiwriter_queued", "lockstep_scheduler_waiting_gangs", "lockstep_apiwriter_requests_total",
	} {
		out[name] = true
	}
	for _, name := range []string{
		"apiserver_flowcontrol_request_wait_duration_seconds", "apiserver_admission_webhook_admission_duration_seconds",
		"etcd_request_duration_seconds", "etcd_disk_wal_fsync_duration_seconds", "etcd_disk_backend_commit_duration_seconds",
		"workqueue_queue_duration_seconds", "workqueue_work_duration_seconds", "rest_client_rate_limiter_duration_seconds",
		"scheduler_scheduling_attempt_duration_seconds", "lockstep_apiwriter_wait_seconds", "lockstep_apiwriter_request_seconds",
		"lockstep_scheduler_cycle_seconds",
	} {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			out[name+suffix] = true
		}
	}
	return out
}()

// Names of processes that Compute knows.
const (
	APIServer = "kube-apiserver"
	EtcdName  = "etcd"
)

// Names of queues of Lockstep's manager and of kube-scheduler, which are no work queues of client-go.
const (
	Writes = "writes"
	Gangs  = "gangs"
	Pods   = "pods"
)

// Compute computes the figures of a run from the pages of all processes, and from samples, which it
// keeps.
func Compute(before, after map[string]Page, samples []Sample, workers map[string]map[string]Workers, missing map[string]string) *Figures {
	f := &Figures{Samples: samples}
	if len(missing) > 0 {
		f.Missing = missing
	}
	for _, process := range slices.Sorted(maps.Keys(after)) {
		if before[process] == nil {
			continue
		}
		s := span{before[process], after[process]}
		switch process {
		case APIServer:
			f.Server = s.server()
		case EtcdName:
			f.Etcd = s.etcd()
		default:
			if f.Controllers == nil {
				f.Controllers = map[string]*Controller{}
			}
			c := s.controller()
			c.Workers = workers[process]
			f.Controllers[process] = c
		}
	}
	for _, sample := range samples {
		for name, depth := range sample.Depths {
			process, queue, _ := strings.Cut(name, "/")
			if c := f.Controllers[process]; c != nil {
				q := c.Queues[queue]
				q.DepthMax = max(q.DepthMax, depth)
				put(&c.Queues, queue, q)
			}
		}
	}
	return f
}

func (s span) server() *Server {
	out := &Server{}
	out.Requests = s.counts("apiserver_request_total", func(l map[string]string) string {
		if l["verb"] == "WATCH" || l["verb"] == "CONNECT" {
			return ""
		}
		kind := strings.ToLower(l["verb"]) + " " + l["resource"]
		if l["group"] != "" {
			kind += "." + l["group"]
		}
		if l["subresource"] != "" {
			kind += "/" + l["subresource"]
		}
		return kind
	})
	out.Codes = s.counts("apiserver_request_total", func(l map[string]string) string {
		if l["verb"] == "WATCH" || l["verb"] == "CONNECT" {
			return ""
		}
		return l["code"]
	})
	for _, level := range s.after.values("apiserver_flowcontrol_dispatched_requests_total", "priority_level") {
		l := Level{
			Requests: int(s.rise("apiserver_flowcontrol_dispatched_requests_total", "priority_level", level)),
			Rejected: int(s.rise("apiserver_flowcontrol_rejected_requests_total", "priority_level", level)),
			Wait:     s.histogram("apiserver_flowcontrol_request_wait_duration_seconds", "priority_level", level),
		}
		if l.Requests+l.Rejected > 0 {
			put(&out.Levels, level, l)
		}
	}
	for _, name := range s.after.values("apiserver_admission_webhook_admission_duration_seconds_count", "name") {
		if h := s.histogram("apiserver_admission_webhook_admission_duration_seconds", "name", name); h.Count > 0 {
			put(&out.Webhooks, name, h)
		}
	}
	out.PodCreates = s.histogram("apiserver_request_duration_seconds", "resource", "pods", "verb", "POST", "subresource", "")
	out.CPUSeconds, out.CPUs = round(s.rise("process_cpu_seconds_total")), int(s.after.Sum("go_sched_gomaxprocs_threads"))
	out.Etcd = s.histogram("etcd_request_duration_seconds")
	out.AuditErrors = int(s.rise("apiserver_audit_error_total") + s.rise("apiserver_audit_requests_rejected_total"))
	return out
}

// counts sums the rises of a counter by a key of its labels; an empty key is left out.
func (s span) counts(name string, key func(labels map[string]string) string) map[string]int {
	sums := map[string]float64{}
	for sign, p := range map[float64]Page{-1: s.before, 1: s.after} {
		for _, v := range p[name] {
			if k := key(v.Labels); k != "" {
				sums[k] += sign * v.Value
			}
		}
	}
	var out map[string]int
	for k, n := range sums {
		if n > 0 {
			put(&out, k, int(n))
		}
	}
	return out
}

// put puts a value into a map, which may be nil: JSON leaves empty maps out.
func put[V any](into *map[string]V, key string, v V) {
	if *into == nil {
		*into = map[string]V{}
	}
	(*into)[key] = v
}

func (s span) etcd() *Etcd {
	return &Etcd{
		Fsync: s.histogram("etcd_disk_wal_fsync_duration_seconds"), Commit: s.histogram("etcd_disk_backend_commit_duration_seconds"),
		DatabaseMiB: round(s.after.Sum("etcd_mvcc_db_total_size_in_bytes") / (1 << 20)),
	}
}

func (s span) controller() *Controller {
	c := &Controller{Goroutines: int(s.after.Sum("go_goroutines"))}
	for _, name := range s.after.values("workqueue_adds_total", "name") {
		q := Queue{
			Adds: int(s.rise("workqueue_adds_total", "name", name)), Retries: int(s.rise("workqueue_retries_total", "name", name)),
			Wait: s.histogram("workqueue_queue_duration_seconds", "name", name), Work: s.histogram("workqueue_work_duration_seconds", "name", name),
		}
		if q.Adds > 0 {
			put(&c.Queues, name, q)
		}
	}
	if s.after.Has("lockstep_apiwriter_wait_seconds_count") {
		q := Queue{Wait: s.histogram("lockstep_apiwriter_wait_seconds"), Work: s.histogram("lockstep_apiwriter_request_seconds")}
		if q.Adds = q.Wait.Count; q.Adds > 0 {
			put(&c.Queues, Writes, q)
		}
	}
	if h := s.histogram("scheduler_scheduling_attempt_duration_seconds"); h.Count > 0 {
		put(&c.Queues, Pods, Queue{Adds: h.Count, Work: h})
	}
	if h := s.histogram("lockstep_scheduler_cycle_seconds"); h.Count > 0 {
		put(&c.Queues, Gangs, Queue{Work: h})
	}
	if s.after.Has("rest_client_rate_limiter_duration_seconds_count") {
		h := s.histogram("rest_client_rate_limiter_duration_seconds")
		c.Throttled = &h
	}
	code := func(l map[string]string) string { return l["code"] }
	c.Requests = s.counts("rest_client_requests_total", code)
	for n, sent := range s.counts("lockstep_apiwriter_requests_total", code) {
		put(&c.Requests, n, c.Requests[n]+sent)
	}
	return c
}

// Depths returns the depths of a process's queues that are not empty, by name.
func (p Page) Depths() map[string]int {
	out := map[string]int{}
	add := func(metric string, name func(labels map[string]string) string) {
		for _, v := range p[metric] {
			if v.Value > 0 {
				out[name(v.Labels)] += int(v.Value)
			}
		}
	}
	add("workqueue_depth", func(l map[string]string) string { return l["name"] })
	add("scheduler_pending_pods", func(map[string]string) string { return Pods })
	add("lockstep_apiwriter_queued", func(map[string]string) string { return Writes })
	add("lockstep_scheduler_waiting_gangs", func(map[string]string) string { return Gangs })
	return out
}

// Busy adds the active workers of a process to what was the most so far, by controller.
func (p Page) Busy(most map[string]Workers) map[string]Workers {
	for _, v := range p["controller_runtime_active_workers"] {
		name := v.Labels["controller"]
		if most == nil {
			most = map[string]Workers{}
		}
		w := most[name]
		w.Active = max(w.Active, int(v.Value))
		w.Max = int(p.Sum("controller_runtime_max_concurrent_reconciles", "controller", name))
		most[name] = w
	}
	return most
}

// Lost says that the API server could not write audit events; empty if it wrote all.
func (f *Figures) Lost() string {
	if f == nil || f.Server == nil || f.Server.AuditErrors == 0 {
		return ""
	}
	return fmt.Sprintf("the API server could not write %d audit events", f.Server.AuditErrors)
}
