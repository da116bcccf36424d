package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
	"lockstep.dev/lockstep/internal/workflow/handover"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// executorPrograms are what the image of workflows' executor holds, with the variables that say where they are.
var executorPrograms = []struct{ name, variable, path string }{
	{"lockstep-exec", "LOCKSTEP_EXEC", handover.OwnExec},
	{"lockstep-exec-io", "LOCKSTEP_EXEC_IO", handover.OwnIO},
}

// machineCertificates are where machines keep the certificates that they trust; the executor's image gets a copy.
var machineCertificates = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// LoadExecutor makes the image of workflows' executor of the programs on this machine, and gives it to the real nodes of
// the cluster in dir.
func LoadExecutor(ctx context.Context, dir string) error {
	spec, err := realnodes.Read(RealNodesDir(dir))
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "lockstep-exec-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	for _, p := range executorPrograms {
		from, err := findProgram(p.name, p.variable)
		if err != nil {
			return err
		}
		if err := ociimage.CopyFile(from, filepath.Join(root, p.path), 0o755); err != nil {
			return err
		}
	}
	for _, from := range machineCertificates {
		if isFile(from) {
			if err := ociimage.CopyFile(from, filepath.Join(root, machineCertificates[0]), 0o644); err != nil {
				return err
			}
			break
		}
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o777); err != nil {
		return err
	}
	archive, err := os.CreateTemp("", "lockstep-image-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name())
	err = ociimage.Write(archive, ociimage.Image{Name: pods.DefaultImage, Root: root, Command: []string{handover.OwnExec}})
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	if _, err := spec.Import(ctx, archive.Name()); err != nil {
		return fmt.Errorf("image %s: %w", pods.DefaultImage, err)
	}
	return nil
}
