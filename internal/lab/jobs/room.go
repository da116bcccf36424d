package jobs

import (
	"errors"
	"fmt"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// fits returns an error if the nodes cannot hold n pods of one request.
func fits(nodes map[string]analyse.Resources, request analyse.Resources, n int) error {
	if len(nodes) == 0 {
		return errors.New("the cluster has no nodes")
	}
	room := 0
	for _, node := range nodes {
		room += max(0, min(int(node.Pods), int(node.MilliCPU/max(1, request.MilliCPU)), int(node.MemoryBytes/max(1, request.MemoryBytes))))
	}
	if room < n {
		return fmt.Errorf("the load does not fit: %d nodes have room for %d pods of %dm cpu and %d MiB, and the load has %d",
			len(nodes), room, request.MilliCPU, request.MemoryBytes>>20, n)
	}
	return nil
}
