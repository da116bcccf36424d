package nodeusage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"lockstep.dev/lockstep/internal/scheduler/usage"
)

// metricsAPI reads metrics.k8s.io, which the metrics server and others serve.
type metricsAPI struct{ client rest.Interface }

// nodeMetricsPath lists the metrics of all nodes. The types have no protobuf in all servers.
const nodeMetricsPath = "/apis/metrics.k8s.io/v1beta1/nodes"

func (a metricsAPI) read(ctx context.Context, nodes []*corev1.Node, _ time.Time) (map[string]usage.Use, error) {
	data, err := a.client.Get().AbsPath(nodeMetricsPath).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics.k8s.io: %w", err)
	}
	var list metricsv1beta1.NodeMetricsList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("metrics.k8s.io: %w", err)
	}
	allocatable := make(map[string]corev1.ResourceList, len(nodes))
	for _, n := range nodes {
		allocatable[n.Name] = n.Status.Allocatable
	}
	uses := make(map[string]usage.Use, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i]
		all, known := allocatable[m.Name]
		if !known {
			continue
		}
		uses[m.Name] = usage.Use{
			CPU:    percent(m.Usage[corev1.ResourceCPU], all[corev1.ResourceCPU]),
			Memory: percent(m.Usage[corev1.ResourceMemory], all[corev1.ResourceMemory]),
			At:     m.Timestamp.Time,
		}
	}
	return uses, nil
}

// percent returns used as a percentage of all; 0 if there is nothing.
func percent(used, all resource.Quantity) float64 {
	if all.Sign() <= 0 {
		return 0
	}
	return 100 * used.AsApproximateFloat64() / all.AsApproximateFloat64()
}
