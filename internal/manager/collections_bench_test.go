package manager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestDeletionBesideTheFloor measures how long the deletion of the pods of a run takes, and logs the
// result. LOCKSTEP_DELETE_PODS is their number. LOCKSTEP_DELETE_WAYS has the ways, in order:
//
//	floor:N        a bare client deletes the pods one by one, N at a time
//	collections:N  a bare client sends N requests for collections, without a run
//	runs:N         the same, with the run that the policy compares
//	manager        the manager aborts the job
//
// Each way deletes the pods of a new run of the same job. The time ends when the last request has been
// answered. A pod has a node and so a grace period, after which the simulated kubelet deletes it.
func TestDeletionBesideTheFloor(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("LOCKSTEP_DELETE_PODS"))
	if n <= 0 {
		t.Skip("LOCKSTEP_DELETE_PODS is not set")
	}
	ways := os.Getenv("LOCKSTEP_DELETE_WAYS")
	if ways == "" {
		ways = "floor:32 manager floor:64 manager"
	}
	c := localtest.Beside(t, localtest.WithControllerManager(), localtest.WithInstall(),
		localtest.WithNodes(localcluster.Nodes{Count: 20, CPU: "100", Memory: "100Gi", Pods: n/20 + 10}))
	e := newEnv(t, c)
	stop := e.run()
	e.create(newJob("wide", int32(n), "1m", minAvailable(1)))
	for _, way := range strings.Fields(ways) {
		e.eachRuns(n)
		e.allRun("wide", int32(n))
		kind, number, _ := strings.Cut(way, ":")
		parallel, _ := strconv.Atoi(number)
		if kind == "manager" {
			before := e.podDeletions()
			began := time.Now()
			e.command(bus.AbortJobAction, "Job", "wide")
			e.until("wide", inPhase(batch.Aborted))
			gone := time.Since(began)
			first, last := e.deletionTimes(began)
			t.Logf("%s: %v requests, %.1f s; the first was sent after %.1f s; all pods were gone after %.1f s", way,
				since(before, e.podDeletions()), last.Sub(first).Seconds(), first.Sub(began).Seconds(), gone.Seconds())
			e.command(bus.ResumeJobAction, "Job", "wide")
			continue
		}
		stop()
		began := time.Now()
		took, requests := e.deleteBare(kind, parallel, e.podsOf("wide"))
		e.noPods("all pods are gone")
		t.Logf("%s: %d requests, %.1f s; all pods were gone after %.1f s", way, requests, took.Seconds(), time.Since(began).Seconds())
		stop = e.run() // the run goes on with new pods
	}
}

// eachRuns waits until there are n pods, of which none is pending. Its requests cost the API server
// little: after a restart of the manager the status of the job says nothing.
func (e *env) eachRuns(n int) {
	e.Helper()
	e.eventually("all pods run", func() error {
		list, err := e.core.CoreV1().Pods(e.ns).List(e.Context(), metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		there := len(list.Items)
		if list.RemainingItemCount != nil {
			there += int(*list.RemainingItemCount)
		}
		if there != n {
			return fmt.Errorf("there are %d pods", there)
		}
		list, err = e.core.CoreV1().Pods(e.ns).List(e.Context(), metav1.ListOptions{FieldSelector: "status.phase=Pending"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are pending", len(list.Items))
		}
		return err
	})
}

// deletionTimes returns when the first request since a moment that deletes pods was received, and when
// the last one was answered.
func (e *env) deletionTimes(since time.Time) (first, last time.Time) {
	e.Helper()
	for _, call := range localtest.ManagerCalls(e, e.c) {
		if call.Resource != "pods" || !strings.HasPrefix(call.Verb, "delete") || call.Received.Before(since) {
			continue
		}
		if first.IsZero() || call.Received.Before(first) {
			first = call.Received
		}
		if call.Answered.After(last) {
			last = call.Answered
		}
	}
	return first, last
}

// deleteBare deletes pods without a manager, and returns how long that took and the number of requests.
func (e *env) deleteBare(kind string, parallel int, pods []corev1.Pod) (time.Duration, int) {
	e.Helper()
	cfg := e.c.ManagerRESTConfig()
	conns, err := kubeclient.Connections(cfg, 8)
	if err != nil {
		e.Fatal(err)
	}
	var requests []func(conn *http.Client) error
	path := cfg.Host + "/api/v1/namespaces/" + e.ns + "/pods"
	if kind == "floor" {
		for i := range pods {
			body, err := json.Marshal(&metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
				Preconditions: &metav1.Preconditions{UID: &pods[i].UID}})
			if err != nil {
				e.Fatal(err)
			}
			requests = append(requests, func(conn *http.Client) error {
				return deleteBare(e.Context(), conn, path+"/"+pods[i].Name, string(body), nil)
			})
		}
	} else {
		header := http.Header{}
		if kind == "runs" {
			header.Set("Impersonate-User", localcluster.ManagerUser)
			header.Set("Impersonate-Extra-lockstep.dev%2frun",
				string(pods[0].OwnerReferences[0].UID)+"/"+pods[0].Annotations[batch.JobVersionKey])
		}
		for i := range parallel {
			from, to := len(pods)*i/parallel, len(pods)*(i+1)/parallel
			selector := fmt.Sprintf("volcano.sh/job-name=wide,volcano.sh/task-index<%d", to)
			if from > 0 {
				selector += fmt.Sprintf(",volcano.sh/task-index>%d", from-1)
			}
			requests = append(requests, func(conn *http.Client) error {
				return deleteBare(e.Context(), conn, path+"?labelSelector="+url.QueryEscape(selector), "", header)
			})
		}
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	began := time.Now()
	for w := range parallel {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(requests) {
					return
				}
				if err := requests[i](conns[w%len(conns)]); err != nil {
					e.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	if e.Failed() {
		e.FailNow()
	}
	return time.Since(began), len(requests)
}

func deleteBare(ctx context.Context, conn *http.Client, address, body string, header http.Header) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Accept", kubeclient.AcceptMetadata(body == ""))
	r.Header.Set("Content-Type", "application/json")
	got, err := conn.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, got.Status)
	}
	return nil
}
