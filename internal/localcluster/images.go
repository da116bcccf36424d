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
)

// ShippedImage is one of the images that the Dockerfile makes, which a test holds this to. Real nodes get the same without
// Docker: the programs, on what Base puts into a root file system.
type ShippedImage struct {
	// Target is the image's stage in the Dockerfile.
	Target string
	// Programs are the image's, by their names in bin/.
	Programs map[string]string
	// Entrypoint runs unless a pod names a command.
	Entrypoint []string
}

// ManagerImage has the manager, the agents and the command line.
func ManagerImage() ShippedImage {
	return ShippedImage{Target: "lockstep", Programs: map[string]string{"lockstep": "/usr/bin/lockstep"}, Entrypoint: []string{"lockstep"}}
}

// ExecutorImage has what pods of workflows take lockstep-exec from.
func ExecutorImage() ShippedImage {
	return ShippedImage{
		Target:     "exec",
		Programs:   map[string]string{"lockstep-exec": handover.OwnExec, "lockstep-exec-io": handover.OwnIO},
		Entrypoint: []string{handover.OwnExec},
	}
}

// programVariables name the environment variables that say where a program is.
var programVariables = map[string]string{"lockstep": "LOCKSTEP", "lockstep-exec": "LOCKSTEP_EXEC", "lockstep-exec-io": "LOCKSTEP_EXEC_IO"}

// FindShipped returns the path of a program of images on this machine; see findProgram.
func FindShipped(name string) (string, error) { return findProgram(name, programVariables[name]) }

// Load makes the image of the programs that find names, and gives it to all real nodes under this name.
func (i ShippedImage) Load(ctx context.Context, spec realnodes.Spec, name string, find func(program string) (string, error)) error {
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

// machineCertificates are where machines keep the certificates that they trust; images get a copy.
var machineCertificates = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// base puts into root what the Dockerfile's base image documents: certificates, the users root and nonroot, and /tmp.
// It leaves out the base image's time zones, for the programs have their own.
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
	// Mkdir's mode is cut by the umask.
	return errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|os.ModeSticky))
}
