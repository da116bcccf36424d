package flow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	// probesAtOnce is how many pods of a namespace are probed at a time.
	probesAtOnce = 16
)

// question is a probe of the pods of a task by HTTP or TCP.
type question struct {
	job  types.UID
	task string
	// need is the number of pods that must answer.
	need int
	port int32
	// tcp means that the port must accept connections; otherwise path is requested by HTTP, with
	// the header.
	tcp                 bool
	path, header, value string
}

// probe is a question to one pod, and why the pod does not answer it.
type probe struct {
	*question
	pod *corev1.Pod
	err error
}

// prober asks pods.
type prober struct {
	guard *egress.Guard
	// pods returns the pods of a job.
	pods func(job types.UID) []*corev1.Pod

	mu         sync.Mutex
	namespaces map[string]*places
}

// places bounds the probes of one namespace.
type places struct {
	taken chan struct{} // has one element per probe under way
	users int           // calls of askAll that use it
}

// placesOf returns the places of a namespace. The caller must call release once.
func (p *prober) placesOf(namespace string) (s *places, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.namespaces[namespace]; s == nil {
		s = &places{taken: make(chan struct{}, probesAtOnce)}
		if p.namespaces == nil {
			p.namespaces = map[string]*places{}
		}
		p.namespaces[namespace] = s
	}
	s.users++
	return s, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(p.namespaces, namespace)
		}
	}
}

// askAll returns the answers to questions: why a probe does not succeed, or an empty string.
func (p *prober) askAll(ctx context.Context, namespace string, questions []question) map[question]string {
	ctx, cancel := context.WithTimeout(ctx, 4*probeTimeout)
	defer cancel()
	probes := make([][]probe, len(questions))
	var next []*probe
	for i := range questions {
		probes[i] = p.probes(&questions[i])
		for j := range probes[i] {
			if probes[i][j].err == nil {
				next = append(next, &probes[i][j])
			}
		}
	}
	places, release := p.placesOf(namespace)
	defer release()
	var asking sync.WaitGroup
	for len(next) > 0 {
		select {
		case places.taken <- struct{}{}:
			x := next[0]
			next = next[1:]
			asking.Go(func() {
				defer func() { <-places.taken }()
				x.err = p.one(ctx, x.pod.Status.PodIP, x.question)
			})
			continue
		case <-ctx.Done():
		}
		for _, x := range next {
			x.err = errors.New("too many probes of its namespace at a time")
		}
		next = nil
	}
	asking.Wait()
	answers := map[question]string{}
	for i, q := range questions {
		answers[q] = q.answer(probes[i])
	}
	return answers
}

// probes returns the probes that answer a question.
func (p *prober) probes(q *question) []probe {
	var list []probe
	for _, pod := range p.pods(q.job) {
		if pod.Labels[batch.TaskSpecKey] == q.task && pod.Status.Phase == corev1.PodRunning {
			list = append(list, probe{question: q, pod: pod})
		}
	}
	slices.SortFunc(list, func(a, b probe) int { return strings.Compare(a.pod.Name, b.pod.Name) })
	list = list[:min(len(list), probedPods)]
	for i := range list {
		if pod := list[i].pod; pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
			list[i].err = fmt.Errorf("pod %s is not there yet", pod.Name)
		}
	}
	return list
}

// answer returns why the probes do not answer the question, or an empty string.
func (q *question) answer(probes []probe) string {
	answered, reason := 0, error(nil)
	for i := range probes {
		switch err := probes[i].err; {
		case err == nil:
			answered++
		case reason == nil:
			reason = err
		}
	}
	switch {
	case answered >= q.need:
		return ""
	case reason == nil:
		return fmt.Sprintf("%d of %d pods run", answered, q.need)
	}
	return fmt.Sprintf("%d of %d pods answer; %s", answered, q.need, reason)
}

// one asks one pod.
func (p *prober) one(ctx context.Context, ip string, q *question) error {
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
