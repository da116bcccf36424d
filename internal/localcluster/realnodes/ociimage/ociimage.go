package ociimage

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image describes the image to build.
type Image struct {
	// Name is the full reference: localhost/tools:1.
	Name string
	// Root is a directory that becomes the root file system. Its files keep their modes; root owns
	// all of them.
	Root string
	// Command is the default command, or, if there is an Entrypoint, its default arguments.
	Command []string
	// Entrypoint is the default command. The arguments of a pod replace Command.
	Entrypoint []string
	// Env are NAME=value pairs.
	Env []string
}

// Write writes the image as an OCI archive. Equal directories give equal archives.
func Write(w io.Writer, image Image) error {
	layer, err := os.CreateTemp("", "lockstep-layer-")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := writeTree(io.MultiWriter(layer, sum), image.Root); err != nil {
		return fmt.Errorf("%s: %w", image.Root, err)
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return write(w, image, layer, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digestOf(sum), Size: size})
}

func digestOf(sum hash.Hash) digest.Digest { return digest.NewDigest(digest.SHA256, sum) }

// write writes an archive with one layer, and the config, manifest and index that describe it.
func write(w io.Writer, image Image, layer io.Reader, desc v1.Descriptor) error {
	out := tar.NewWriter(w)
	blob := func(mediaType string, v any) (v1.Descriptor, error) {
		data, err := json.Marshal(v)
		if err != nil {
			return v1.Descriptor{}, err
		}
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		return d, writeFile(out, blobPath(d.Digest), data)
	}
	if err := out.WriteHeader(&tar.Header{Name: blobPath(desc.Digest), Size: desc.Size, Mode: 0o644}); err != nil {
		return err
	}
	if _, err := io.Copy(out, layer); err != nil {
		return err
	}
	config, err := blob(v1.MediaTypeImageConfig, v1.Image{
		Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   v1.ImageConfig{Entrypoint: image.Entrypoint, Cmd: image.Command, Env: image.Env},
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{desc.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := blob(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config,
		Layers: []v1.Descriptor{desc},
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": image.Name, v1.AnnotationRefName: image.Name}
	manifest.Platform = &v1.Platform{Architecture: runtime.GOARCH, OS: "linux"}
	index, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{manifest},
	})
	if err != nil {
		return err
	}
	if err := writeFile(out, v1.ImageIndexFile, index); err != nil {
		return err
	}
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	return errors.Join(writeFile(out, v1.ImageLayoutFile, layout), out.Close())
}

func blobPath(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

func writeFile(out *tar.Writer, name string, data []byte) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644}); err != nil {
		return err
	}
	_, err := out.Write(data)
	return err
}

// writeTree writes the content of the directory root as a layer, in the order of names. It omits
// sockets and preserves hard links.
func writeTree(w io.Writer, root string) error {
	out := tar.NewWriter(w)
	links := map[[2]uint64]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root || d.Type()&fs.ModeSocket != 0 {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if d.Type()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name = filepath.ToSlash(rel)
		if d.IsDir() {
			h.Name += "/"
		}
		h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
		h.Uid, h.Gid, h.Uname, h.Gname, h.Format = 0, 0, "", "", tar.FormatPAX
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && info.Mode().IsRegular() {
			id := [2]uint64{uint64(st.Dev), st.Ino}
			if first, seen := links[id]; seen {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
				return out.WriteHeader(h)
			}
			links[id] = h.Name
		}
		if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(out, f)
		return err
	})
	return errors.Join(err, out.Close())
}
