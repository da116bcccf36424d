package metrics

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(t *testing.T, text string) Page {
	t.Helper()
	p, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const serverBefore = `# HELP apiserver_request_total Counter.
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST"} 10
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 5
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="0.01"} 10
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="0.02"} 10
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="+Inf"} 10
etcd_request_duration_seconds_sum{operation="create",type="pods"} 0.05
etcd_request_duration_seconds_count{operation="create",type="pods"} 10
some_other_metric{a="b"} 1
`

const serverAfter = `apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST"} 110
apiserver_request_total{code="429",component="apiserver",group="batch",resource="jobs",subresource="status",verb="PUT"} 3
apiserver_request_total{code="200",component="apiserver",group="",resource="pods",subresource="",verb="WATCH"} 7
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 5
apiserver_flowcontrol_dispatched_requests_total{flow_schema="a",priority_level="workload-low"} 90
apiserver_flowcontrol_dispatched_requests_total{flow_schema="b",priority_level="workload-low"} 10
apiserver_flowcontrol_rejected_requests_total{flow_schema="a",priority_level="workload-low",reason="queue-full"} 3
apiserver_flowcontrol_request_wait_duration_seconds_sum{execute="true",flow_schema="a",priority_level="workload-low"} 4
apiserver_flowcontrol_request_wait_duration_seconds_count{execute="true",flow_schema="a",priority_level="workload-low"} 90
apiserver_flowcontrol_request_wait_duration_seconds_sum{execute="false",flow_schema="a",priority_level="workload-low"} 1
apiserver_flowcontrol_request_wait_duration_seconds_count{execute="false",flow_schema="a",priority_level="workload-low"} 10
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="0.01"} 60
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="0.02"} 110
etcd_request_duration_seconds_bucket{operation="create",type="pods",le="+Inf"} 110
etcd_request_duration_seconds_sum{operation="create",type="pods"} 1.05
etcd_request_duration_seconds_count{operation="create",type="pods"} 110
apiserver_audit_error_total{plugin="log"} 2
`

const managerAfter = `workqueue_adds_total{name="jobs"} 4
workqueue_retries_total{name="jobs"} 1
workqueue_depth{name="jobs"} 2
workqueue_depth{name="idle"} 0
workqueue_queue_duration_seconds_sum{name="jobs"} 2
workqueue_queue_duration_seconds_count{name="jobs"} 4
rest_client_rate_limiter_duration_seconds_sum{host="a",verb="POST"} 3
rest_client_rate_limiter_duration_seconds_count{host="a",verb="POST"} 6
rest_client_requests_total{code="201",host="a",method="POST"} 6
lockstep_apiwriter_queued{class="pods"} 3
lockstep_apiwriter_queued{class="status"} 4
controller_runtime_active_workers{controller="toy"} 2
controller_runtime_max_concurrent_reconciles{controller="toy"} 4
go_goroutines 57
`

func TestFiguresOfARun(t *testing.T) {
	manager := parse(t, managerAfter)
	if diff := cmp.Diff(map[string]int{"jobs": 2, "writes": 7}, manager.Depths()); diff != "" {
		t.Errorf("depths (-want +got):\n%s", diff)
	}
	f := Compute(map[string]Page{APIServer: parse(t, serverBefore), "manager": {}, "ended": {}},
		map[string]Page{APIServer: parse(t, serverAfter), "manager": manager},
		[]Sample{{At: 1, Depths: map[string]int{"manager/jobs": 9, "manager/writes": 2}}, {At: 2, Depths: map[string]int{"manager/jobs": 3}}},
		map[string]map[string]Workers{"manager": manager.Busy(nil)}, map[string]string{"ended": "it ended"})
	want := &Figures{
		Server: &Server{
			Requests:    map[string]int{"post pods": 100, "put jobs.batch/status": 3},
			Codes:       map[string]int{"201": 100, "429": 3},
			Levels:      map[string]Level{"workload-low": {Requests: 100, Rejected: 3, Wait: Histogram{Count: 100, MeanMs: 50, Seconds: 5}}},
			Etcd:        Histogram{Count: 100, MeanMs: 10, P99Ms: 19.8, Seconds: 1},
			AuditErrors: 2,
		},
		Controllers: map[string]*Controller{"manager": {
			Queues: map[string]Queue{"jobs": {Adds: 4, Retries: 1, DepthMax: 9, Wait: Histogram{Count: 4, MeanMs: 500, Seconds: 2}},
				"writes": {DepthMax: 2}},
			Throttled: &Histogram{Count: 6, MeanMs: 500, Seconds: 3}, Requests: map[string]int{"201": 6},
			Workers: map[string]Workers{"toy": {Active: 2, Max: 4}}, Goroutines: 57,
		}},
		Missing: map[string]string{"ended": "it ended"},
	}
	f.Samples = nil
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if lost := f.Lost(); lost != "the API server could not write 2 audit events" {
		t.Errorf("lost: %q", lost)
	}
	if lost := (*Figures)(nil).Lost(); lost != "" {
		t.Errorf("without metrics: %q", lost)
	}
}

// TestAProcessThatWasStartedAnew has counters that are lower after the load than before it.
func TestAProcessThatWasStartedAnew(t *testing.T) {
	s := span{parse(t, "workqueue_adds_total{name=\"jobs\"} 100\n"), parse(t, "workqueue_adds_total{name=\"jobs\"} 4\n")}
	if n := s.rise("workqueue_adds_total"); n != 4 {
		t.Errorf("a rise of %v, not 4", n)
	}
}

func TestQuantiles(t *testing.T) {
	for sentence, c := range map[string]struct {
		text string
		q    float64
		want float64
	}{
		"in the first bucket":                      {`b{le="1"} 10` + "\n" + `b{le="+Inf"} 10`, 0.5, 0.5},
		"beyond the last bound":                    {`b{le="1"} 1` + "\n" + `b{le="+Inf"} 10`, 0.99, 1},
		"two label sets add up":                    {`b{x="1",le="1"} 1` + "\n" + `b{x="2",le="1"} 1` + "\n" + `b{x="1",le="2"} 2` + "\n" + `b{x="2",le="2"} 2`, 1, 2},
		"nothing was observed":                     {`b{le="1"} 0` + "\n" + `b{le="+Inf"} 0`, 0.99, 0},
		"an empty bucket before that of the value": {`b{le="1"} 0` + "\n" + `b{le="2"} 4` + "\n" + `b{le="+Inf"} 4`, 0.5, 1.5},
	} {
		text := strings.ReplaceAll(c.text, "b{", "workqueue_queue_duration_seconds_bucket{") + "\n"
		page := parse(t, text)
		if got := (span{nil, page}).quantile(c.q, "workqueue_queue_duration_seconds_bucket"); got != c.want {
			t.Errorf("%s: %v, want %v", sentence, got, c.want)
		}
	}
}
