package local

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// NewImage returns the command 'image'.
func NewImage(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{Use: "image", Short: "Images on the real nodes of a local cluster"},
		newImageLoad(s))
}

func newImageLoad(s command.Streams) *cobra.Command {
	var name string
	var dryRun command.DryRun
	image := ociimage.Image{}
	cmd := &cobra.Command{
		Use:   "load FILE|DIR [-- COMMAND ARG...]",
		Short: "Put an image into the store of every real node",
		Long: `Put an image into the store of every real node of a local cluster. No registry is asked.

FILE is an OCI image archive, or one that 'docker save' wrote. DIR is a folder that becomes the image's root file system;
--tag names the image, and COMMAND is what it runs when a pod names no command.

A pod that uses the image must not ask for it to be pulled: give the tag a version other than 'latest', or set
imagePullPolicy: IfNotPresent.`,
		Example: `  lockstep image load tools.tar
  lockstep image load rootfs --tag localhost/busybox:1 -- /bin/sh`,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash >= 0 {
				image.Command, args = args[dash:], args[:dash]
			}
			if len(args) != 1 {
				return command.Usagef("image load takes one FILE or DIR, not %d", len(args))
			}
			ctx, stop := command.Interruptible(cmd, 0)
			defer stop()
			state, err := supervise.Get(ctx, name)
			if err != nil {
				return clusterError(name, err)
			}
			if state.RealNodes == 0 {
				return fmt.Errorf("cluster %q has no real nodes; 'lockstep up --real-nodes N' starts some", name)
			}
			spec, err := realnodes.Read(localcluster.RealNodesDir(state.Dir))
			if err != nil {
				return err
			}
			archive, release, err := imageArchive(args[0], image)
			if err != nil {
				return err
			}
			defer release()
			if dryRun.On() {
				fmt.Fprintf(s.Out, "%s goes to %d nodes (dry run).\n", args[0], spec.Count)
				return nil
			}
			names, err := spec.Import(ctx, archive)
			if err != nil {
				return err
			}
			for _, n := range names {
				fmt.Fprintf(s.Out, "%s is on %d nodes.\n", n, spec.Count)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", defaultCluster, "name of the cluster")
	dryRun.Add(cmd, "check the cluster and the image, and load nothing", command.DryRunClient)
	cmd.Flags().StringVar(&image.Name, "tag", "", "name of the image that is made of DIR, such as localhost/tools:1")
	cmd.Flags().StringArrayVar(&image.Env, "env", nil,
		"NAME=VALUE in the environment of the image that is made of DIR; may be repeated")
	return cmd
}

// imageArchive returns the path of an image archive: path itself or, if path is a directory, a
// temporary archive of it, which release removes.
func imageArchive(path string, image ociimage.Image) (archive string, release func(), err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	if !info.IsDir() {
		if image.Name != "" || len(image.Command) > 0 || len(image.Env) > 0 {
			return "", nil, command.Usagef("--tag, --env and COMMAND are for a DIR: an archive says them itself")
		}
		return path, func() {}, nil
	}
	if !strings.Contains(image.Name, "/") || !strings.Contains(image.Name[strings.LastIndex(image.Name, "/"):], ":") {
		return "", nil, command.Usagef("--tag %q: a DIR needs a full name, such as localhost/tools:1", image.Name)
	}
	image.Root = path
	f, err := os.CreateTemp("", "lockstep-image-*.tar")
	if err != nil {
		return "", nil, err
	}
	release = func() { _ = os.Remove(f.Name()) }
	if err := errors.Join(ociimage.Write(f, image), f.Close()); err != nil {
		release()
		return "", nil, err
	}
	return f.Name(), release, nil
}
