package archive

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// Pack packs the file or directory from into the file to or, with ArchiveNone, copies it to to.
// level is the compression level of gzip or deflate; nil means the default, and 0 no compression. A
// packed file appears at to only when it is complete.
func Pack(from, to string, kind execapi.Archive, level *int32) error {
	if kind == execapi.ArchiveNone {
		return Copy(from, to)
	}
	partial := to + ".part"
	out, err := os.Create(partial)
	if err != nil {
		return err
	}
	defer os.Remove(partial)
	write := writeTar
	if kind == execapi.ArchiveZip {
		write = writeZip
	}
	if err := errors.Join(write(out, from, level), out.Close()); err != nil {
		return err
	}
	if err := os.Chmod(partial, 0o644); err != nil {
		return err
	}
	return os.Rename(partial, to)
}

// walk visits a file or directory and everything in it, with names that start with its base name.
func walk(root string, visit func(path, name string, info fs.FileInfo) error) error {
	base := filepath.Base(filepath.Clean(root))
	// root itself may be a link, which is followed. Links inside stay links.
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	return filepath.WalkDir(real, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(real, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return visit(path, filepath.ToSlash(filepath.Join(base, rel)), info)
	})
}

func writeTar(w io.Writer, root string, level *int32) error {
	strength := gzip.DefaultCompression
	if level != nil {
		strength = int(*level)
	}
	z, err := gzip.NewWriterLevel(w, strength)
	if err != nil {
		return fmt.Errorf("compressionLevel: %w", err)
	}
	t := tar.NewWriter(z)
	err = walk(root, func(path, name string, info fs.FileInfo) error {
		target := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		case !info.Mode().IsRegular() && !info.IsDir():
			return nil // sockets and devices are not outputs
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name = name
		if info.IsDir() {
			h.Name += "/"
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		return copyInto(t, path, h.Size)
	})
	return errors.Join(err, t.Close(), z.Close())
}

// copyInto copies exactly size bytes of a file, which may still be growing.
func copyInto(w io.Writer, path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w, f, size)
	return err
}

func writeZip(w io.Writer, root string, level *int32) error {
	z := zip.NewWriter(w)
	if level != nil {
		z.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, int(*level)) })
	}
	err := walk(root, func(path, name string, info fs.FileInfo) error {
		link := info.Mode()&fs.ModeSymlink != 0
		if !info.Mode().IsRegular() && !info.IsDir() && !link {
			return nil
		}
		h, err := zip.FileInfoHeader(info)
		if err != nil {
			return err
		}
		h.Name, h.Method = name, zip.Deflate
		if info.IsDir() {
			h.Name, h.Method = name+"/", zip.Store
		}
		entry, err := z.CreateHeader(h)
		switch {
		case err != nil || info.IsDir():
			return err
		case link:
			target, err := os.Readlink(path)
			if err == nil {
				_, err = io.WriteString(entry, target)
			}
			return err
		}
		return copyInto(entry, path, info.Size())
	})
	return errors.Join(err, z.Close())
}

// Copy copies a file or directory. from may be a link, which is followed.
func Copy(from, to string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return err
	}
	defer root.Close()
	return CopyFrom(root, filepath.Base(real), to)
}

// CopyFrom copies a file or directory of a root. Links in a directory stay links, and no link is
// followed out of the root.
func CopyFrom(from *os.Root, name, to string) error {
	info, err := from.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return copyFile(from, name, to, info.Mode().Perm())
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer target.Close()
	source, err := from.OpenRoot(name)
	if err != nil {
		return err
	}
	defer source.Close()
	return fs.WalkDir(source.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			return target.MkdirAll(rel, info.Mode().Perm()|0o700)
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := source.Readlink(rel)
			if err != nil {
				return err
			}
			return target.Symlink(link, rel)
		case info.Mode().IsRegular():
			f, err := source.Open(rel)
			if err != nil {
				return err
			}
			defer f.Close()
			return writeTo(target, rel, f, info.Mode().Perm())
		}
		return nil
	})
}

func copyFile(from *os.Root, name, to string, mode fs.FileMode) error {
	in, err := from.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	partial := to + ".part"
	out, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o200)
	if err != nil {
		return err
	}
	defer os.Remove(partial)
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(mode), out.Close()); err != nil {
		return err
	}
	return os.Rename(partial, to)
}
