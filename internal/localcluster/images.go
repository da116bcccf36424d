package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// ShippedImage is an image that the Dockerfile builds; a test compares both. Real nodes get the
// same image without Docker: the programs on top of the root file system that base creates.
type ShippedImage struct {
	// Target is the image's stage in the Dockerfile.
	Target string
	// Programs maps the names of programs in bin/ to their paths in the image.
	Programs map[string]string
	// Entrypoint is the command for pods that name none.
	Entrypoint []string
}

// ManagerImage is the image with the manager, the agents and the command line.
func ManagerImage() ShippedImage {
	return ShippedImage{Target: "lockstep", Programs: map[string]string{"lockstep": "/usr/bin/lockstep"},
		Entrypoint: []string{"lockstep"}}
}

// ExecutorImage is the image from which pods of workflows take lockstep-exec.
func ExecutorImage() ShippedImage {
	return ShippedImage{
		Target:     "exec",
		Programs:   map[string]string{"lockstep-exec": execapi.OwnExec, "lockstep-exec-io": execapi.OwnIO},
		Entrypoint: []string{execapi.OwnExec},
	}
}

// programVariables are the environment variables that override the paths of programs.
var programVariables = map[string]string{"lockstep": "LOCKSTEP", "lockstep-exec": "LOCKSTEP_EXEC",
	"lockstep-exec-io": "LOCKSTEP_EXEC_IO"}

// FindShipped returns the path of an image's program on this machine; see findProgram.
func FindShipped(name string) (string, error) { return findProgram(name, programVariables[name]) }

// Load builds the image from the programs that find locates, and imports it into all real nodes
// under the given name.
func (i ShippedImage) Load(ctx context.Context, spec realnodes.Spec, name string,
	find func(program string) (string, error)) error {
	root, err := os.MkdirTemp("", "lockstep-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if err := base(root); err != nil {
		return err
	}
	for program, at := range i.Programs {
		from, err := find(program)
		if err != nil {
			return err
		}
		if err := ociimage.AddProgram(root, at, from); err != nil {
			return err
		}
	}
	archive, err := os.CreateTemp("", "lockstep-image-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name())
	err = ociimage.Write(archive, ociimage.Image{Name: name, Root: root, Entrypoint: i.Entrypoint, Env: []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=" + machineCertificates[0],
	}})
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	if _, err := spec.Import(ctx, archive.Name()); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

// machineCertificates are the usual paths of a machine's trusted certificates; images get a copy.
var machineCertificates = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/cert.pem"}

// base creates in root the documented content of the Dockerfile's base image: certificates, the
// users root and nonroot, and /tmp. It omits the base image's time zones, because the programs
// contain their own.
func base(root string) error {
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
		"etc/group":  "root:x:0:\nnonroot:x:65532:\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
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
	tmp := filepath.Join(root, "tmp")
	// The umask reduces the mode of Mkdir.
	return errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|os.ModeSticky))
}
