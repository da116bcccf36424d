package realnodes

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	// NodeTypeLabel with value NodeTypeReal marks real nodes.
	NodeTypeLabel = "lockstep.dev/node-type"
	NodeTypeReal  = "real"
)

// ImportArgs returns ctr's arguments that import an image archive into the containerd on socket,
// for use by kubelets.
func ImportArgs(socket, snapshotter, archive string) []string {
	return []string{"--address=" + socket, "--namespace=k8s.io", "images", "import", "--snapshotter=" + snapshotter,
		archive}
}

// Import imports an image archive (OCI or docker save) into all nodes, and returns the names of the
// images.
func (s Spec) Import(ctx context.Context, archive string) ([]string, error) {
	archive, err := filepath.Abs(archive)
	if err != nil {
		return nil, err
	}
	results := make([]string, s.Count)
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range s.Nodes() {
		group.Go(func() error {
			// The path is relative to the socket's directory, because the full path may exceed the
			// maximum length of a socket's path.
			cmd := exec.CommandContext(ctx, "ctr", ImportArgs("containerd.sock", s.Host.Snapshotter, archive)...)
			cmd.Dir = n.Path("run")
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("node %s: %w: %s", n.Name(), err, strings.TrimSpace(string(out)))
			}
			results[i] = string(out)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	// ctr prints "unpacking NAME (sha256:...)...done" for each image.
	var names []string
	for line := range strings.Lines(results[0]) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "unpacking" {
			names = append(names, f[1])
		}
	}
	return names, nil
}
