package archive

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxLink bounds the target of a link in a zip file, in bytes.
const maxLink = 4096

// Unpack unpacks the file archive to to, which must not exist. A file that is not an archive is
// moved there unchanged. The file archive is consumed.
func Unpack(archive, to string) error {
	kind, err := kindOf(archive)
	if err != nil {
		return err
	}
	if kind == "" {
		return os.Rename(archive, to)
	}
	dir := to + ".part"
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	extract := readTar
	if kind == "zip" {
		extract = readZip
	}
	if err := extract(archive, root); err != nil {
		return err
	}
	if err := os.Remove(archive); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 1 {
		return os.Rename(filepath.Join(dir, entries[0].Name()), to)
	}
	return errors.Join(os.Chmod(dir, 0o755), os.Rename(dir, to))
}

// kindOf returns "tar" or "zip", or "" for a file that is not an archive.
func kindOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	start, _ := r.Peek(4)
	if string(start) == "PK\x03\x04" || string(start) == "PK\x05\x06" {
		return "zip", nil
	}
	in, err := maybeGzip(r)
	if err != nil {
		return "", nil //nolint:nilerr // the file only looks like gzip
	}
	if _, err := tar.NewReader(in).Next(); err != nil {
		return "", nil //nolint:nilerr // not a tar
	}
	return "tar", nil
}

func maybeGzip(r *bufio.Reader) (io.Reader, error) {
	start, _ := r.Peek(2)
	if string(start) != "\x1f\x8b" {
		return r, nil
	}
	return gzip.NewReader(r)
}

// dirs maps directories to their modes. The modes are set last, because a read-only directory may
// contain files.
type dirs map[string]fs.FileMode

func (d dirs) apply(root *os.Root) error {
	for name, mode := range d {
		if err := root.Chmod(name, mode); err != nil {
			return err
		}
	}
	return nil
}

func readTar(file string, root *os.Root) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := maybeGzip(bufio.NewReader(f))
	if err != nil {
		return err
	}
	t := tar.NewReader(in)
	modes := dirs{}
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return modes.apply(root)
		}
		if err != nil {
			return err
		}
		mode := h.FileInfo().Mode().Perm()
		err = entry(root, h.Name, func(name string) error {
			switch h.Typeflag {
			case tar.TypeDir:
				modes[name] = mode
				return root.MkdirAll(name, 0o777)
			case tar.TypeReg:
				return writeTo(root, name, t, mode)
			case tar.TypeSymlink:
				return root.Symlink(h.Linkname, name)
			case tar.TypeLink:
				return root.Link(path.Clean(h.Linkname), name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// entry creates an entry's parent directories and calls make to create the entry. It does nothing
// for the root of the archive, which exists.
func entry(root *os.Root, name string, make func(name string) error) error {
	clean := path.Clean(strings.TrimPrefix(name, "/"))
	if clean == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(clean), 0o777); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := make(clean); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func writeTo(root *os.Root, name string, r io.Reader, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

func readZip(file string, root *os.Root) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer z.Close()
	modes := dirs{}
	for _, f := range z.File {
		mode := f.Mode()
		err := entry(root, f.Name, func(name string) error {
			if mode.IsDir() {
				modes[name] = mode.Perm() | 0o700
				return root.MkdirAll(name, 0o777)
			}
			in, err := f.Open()
			if err != nil {
				return err
			}
			defer in.Close()
			if mode&fs.ModeSymlink != 0 {
				target, err := io.ReadAll(io.LimitReader(in, maxLink))
				if err != nil {
					return err
				}
				return root.Symlink(string(target), name)
			}
			return writeTo(root, name, in, mode.Perm())
		})
		if err != nil {
			return err
		}
	}
	return modes.apply(root)
}
