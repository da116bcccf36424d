package nodeusage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/usage"
)

// What is asked of Prometheus: the percentages of CPU and memory that are used, averages of five
// minutes, by the metrics of the node exporter.
const (
	cpuQuery    = `100 * (1 - avg by (instance, node) (rate(node_cpu_seconds_total{mode="idle"}[5m])))`
	memoryQuery = `100 * (1 - avg_over_time(node_memory_MemAvailable_bytes[5m]) / avg_over_time(node_memory_MemTotal_bytes[5m]))`
)

// prometheusServer reads the metrics of the node exporter from a Prometheus server.
type prometheusServer struct {
	api promv1.API
}

func newPrometheus(from usage.Source) (*prometheusServer, error) {
	client, err := api.NewClient(api.Config{Address: from.Prometheus, RoundTripper: &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: from.Insecure}, //nolint:gosec // as the configuration says
		IdleConnTimeout: 2 * time.Minute,
	}})
	if err != nil {
		return nil, fmt.Errorf("prometheus at %s: %w", from.Prometheus, err)
	}
	return &prometheusServer{promv1.NewAPI(client)}, nil
}

func (p *prometheusServer) read(ctx context.Context, nodes []*corev1.Node, now time.Time) (map[string]usage.Use, error) {
	names := namesOf(nodes)
	cpu, err := p.ask(ctx, cpuQuery, now, names)
	if err != nil {
		return nil, err
	}
	memory, err := p.ask(ctx, memoryQuery, now, names)
	if err != nil {
		return nil, err
	}
	uses := make(map[string]usage.Use, len(cpu))
	for node, percent := range cpu {
		if of, known := memory[node]; known {
			uses[node] = usage.Use{CPU: percent, Memory: of, At: now}
		}
	}
	return uses, nil
}

// ask returns the values of a query by node.
func (p *prometheusServer) ask(ctx context.Context, query string, now time.Time, names map[string]string) (map[string]float64, error) {
	value, _, _, err := p.api.Query(ctx, query, now)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("prometheus: the answer is a %s, want a vector", value.Type())
	}
	of := make(map[string]float64, len(vector))
	for _, sample := range vector {
		if name := nodeOf(sample.Metric, names); name != "" && sample.Value == sample.Value { // not NaN
			of[name] = float64(sample.Value)
		}
	}
	return of, nil
}

// nodeOf returns the node that a series is about: its label node, or its label instance without the
// port, is a name or an address of the node. It is empty for other series.
func nodeOf(labels model.Metric, names map[string]string) string {
	if node := names[string(labels["node"])]; node != "" {
		return node
	}
	instance := string(labels["instance"])
	if host, _, err := net.SplitHostPort(instance); err == nil {
		instance = host
	}
	return names[instance]
}

// namesOf returns the names of nodes by all names and addresses that they have.
func namesOf(nodes []*corev1.Node) map[string]string {
	names := make(map[string]string, 3*len(nodes))
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if _, taken := names[a.Address]; !taken {
				names[a.Address] = n.Name
			}
		}
	}
	for _, n := range nodes {
		names[n.Name] = n.Name
	}
	return names
}
