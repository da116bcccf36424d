package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ErrNoMetrics is the error of Metrics for a component that does not serve metrics.
var ErrNoMetrics = errors.New("serves no metrics")

// Metrics returns the metrics of a running component in Prometheus' text format. The caller closes
// them.
func (c *Cluster) Metrics(ctx context.Context, name Component) (io.ReadCloser, error) {
	comp, lease := c.components[name], c.ports[name]
	if comp == nil || lease == nil {
		return nil, fmt.Errorf("%s is not part of this cluster", name)
	}
	client, token := c.probe.plain, c.probe.token
	url := loopback("https", lease.port) + "/metrics"
	switch p := c.config.program(name); {
	case p != nil && p.MetricsURL != "":
		url, token = c.expand(p, p.MetricsURL), ""
	case name == Etcd:
		client, token = c.probe.client, ""
	case name == Manager:
		url, token = loopback("http", lease.port)+"/metrics", ""
	case name == APIServer, name == ControllerManager, name == Scheduler:
	default:
		return nil, fmt.Errorf("%s: %w", name, ErrNoMetrics)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return resp.Body, nil
}
