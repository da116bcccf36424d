package localcluster

import (
	"context"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// LoadExecutor builds the image of the workflow executor from the programs on this machine, and
// imports it into the real nodes of the cluster in dir.
func LoadExecutor(ctx context.Context, dir string) error {
	spec, err := realnodes.Read(RealNodesDir(dir))
	if err != nil {
		return err
	}
	return ExecutorImage().Load(ctx, spec, pods.DefaultImage, FindShipped)
}
