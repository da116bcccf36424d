package flow

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/egress"
)

const (
	// probeInterval is the time between two probes of a task, probeTimeout the time that a pod has
	// to answer.
	probeInterval = 5 * time.Second
	probeTimeout  = 5 * time.Second
	// probedPods is how many pods of a task are probed.
	probedPods = 64
	// probesAtOnce is how many pods are probed at a time, for all JobFlows together.
	probesAtOnce = 64
)

// question is a probe of the pods of a task by HTTP or TCP.
type question struct {
	job  types.UID
	name string // of the job
	task string
	// need is the number of pods that must answer.
	need int
	port int32
	// tcp means that the port must accept connections; otherwise path is requested by HTTP, with
	// the header.
	tcp                 bool
	path, header, value string
}

// prober asks pods.
type prober struct {
	guard  *egress.Guard
	client kubernetes.Interface
	slots  chan struct{}
}

// askAll returns the answers to questions: why a probe does not succeed, or an empty string.
func (p *prober) askAll(ctx context.Context, namespace string, questions []question) map[question]string {
	answers := make([]string, len(questions))
	var asking sync.WaitGroup
	for i, q := range questions {
		asking.Go(func() { answers[i] = p.ask(ctx, namespace, q) })
	}
	asking.Wait()
	out := map[question]string{}
	for i, q := range questions {
		out[q] = answers[i]
	}
	return out
}

func (p *prober) ask(ctx context.Context, namespace string, q question) string {
	ctx, cancel := context.WithTimeout(ctx, 4*probeTimeout)
	defer cancel()
	list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{batch.JobNameKey: q.name, batch.TaskSpecKey: q.task}.String(),
		FieldSelector: "status.phase=" + string(corev1.PodRunning), Limit: probedPods,
	})
	if err != nil {
		return "its pods could not be listed"
	}
	errs := make([]error, len(list.Items))
	var asking sync.WaitGroup
	for i := range list.Items {
		pod := &list.Items[i]
		if owner := metav1.GetControllerOfNoCopy(pod); owner == nil || owner.UID != q.job || pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
			errs[i] = fmt.Errorf("pod %s is not there yet", pod.Name)
			continue
		}
		asking.Go(func() {
			select {
			case p.slots <- struct{}{}:
				defer func() { <-p.slots }()
				errs[i] = p.one(ctx, pod.Status.PodIP, q)
			case <-ctx.Done():
				errs[i] = fmt.Errorf("too many probes at a time")
			}
		})
	}
	asking.Wait()
	answered := 0
	for _, e := range errs {
		if e == nil {
			answered++
		} else if err == nil {
			err = e
		}
	}
	switch {
	case answered >= q.need:
		return ""
	case err == nil:
		return fmt.Sprintf("%d of %d pods run", answered, q.need)
	}
	return fmt.Sprintf("%d of %d pods answer; %s", answered, q.need, err)
}

// one asks one pod.
func (p *prober) one(ctx context.Context, ip string, q question) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if q.tcp {
		conn, err := p.guard.DialContext(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(int(q.port))))
		if err != nil {
			return fmt.Errorf("port %d: %w", q.port, err)
		}
		return conn.Close()
	}
	to, err := requestURL(q.path, ip, q.port)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	switch {
	case strings.EqualFold(q.header, "Host"):
		r.Host = q.value
	case q.header != "":
		r.Header.Set(q.header, q.value)
	}
	res, err := p.guard.Do(r)
	if err != nil {
		return err
	}
	_ = res.Body.Close() // only the status counts
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("the answer is %d", res.StatusCode)
	}
	return nil
}

// requestURL returns the URL of a path, with its query, on a port.
func requestURL(path, ip string, port int32) (*url.URL, error) {
	if path == "" {
		path = "/"
	}
	path, query, _ := strings.Cut(path, "?")
	u := &url.URL{Scheme: "http", Host: net.JoinHostPort(ip, strconv.Itoa(int(port))), RawQuery: query}
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = unescaped, path
	_, err = url.Parse(u.String())
	return u, err
}
