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

// ImportArgs are ctr's arguments to import an image archive into the containerd that listens on socket, for kubelets.
func ImportArgs(socket, snapshotter, archive string) []string {
	return []string{"--address=" + socket, "--namespace=k8s.io", "images", "import", "--snapshotter=" + snapshotter, archive}
}

// Import loads an image archive (OCI or docker save) into all nodes, and returns the images' names.
func (s Spec) Import(ctx context.Context, archive string) ([]string, error) {
	archive, err := filepath.Abs(archive)
	if err != nil {
		return nil, err
	}
	results := make([]string, s.Count)
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range s.Nodes() {
		group.Go(func() error {
			// Relative to the socket's directory, whose path may be longer than a socket's may be.
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
	// ctr says "unpacking NAME (sha256:...)...done" for each image.
	var names []string
	for line := range strings.Lines(results[0]) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "unpacking" {
			names = append(names, f[1])
		}
	}
	return names, nil
}
