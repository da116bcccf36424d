package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/archive"
)

// store is the place where one artifact is kept.
type store interface {
	// load fetches the artifact to the path to, as a file or directory. The error wraps
	// os.ErrNotExist if there is no artifact.
	load(ctx context.Context, to string) error
	// save stores the content of the source.
	save(ctx context.Context, from source) error
	// remove deletes the artifact. A missing artifact is not an error.
	remove(ctx context.Context) error
}

func open(l execapi.Location) (store, error) {
	switch {
	case l.S3 != nil:
		b, err := openS3(l.S3)
		return objectStore{b, l.S3.Key}, err
	case l.GCS != nil:
		b, err := openGCS(l.GCS)
		return objectStore{b, l.GCS.Key}, err
	case l.Azure != nil:
		b, err := openAzure(l.Azure)
		return objectStore{b, l.Azure.Blob}, err
	case l.OSS != nil:
		b, err := openOSS(l.OSS)
		return objectStore{b, l.OSS.Key}, err
	case l.HDFS != nil:
		return hdfsStore{l.HDFS}, nil
	case l.HTTP != nil:
		return openHTTP(l.HTTP)
	case l.Git != nil:
		return gitStore{l.Git}, nil
	case l.Volume != nil:
		return volumeStore{file: l.Volume}, nil
	case l.Raw != nil:
		return rawStore{l.Raw}, nil
	}
	return nil, errors.New("no location")
}

// lister is a store that can list what is below its place.
type lister interface {
	// paths returns the keys of objects, or the paths of files.
	paths(ctx context.Context) ([]string, error)
}

// pathsMax bounds the objects that are listed.
const pathsMax = 100_000

// Paths lists the artifacts below a location.
func Paths(ctx context.Context, l execapi.Location) ([]string, error) {
	at, err := open(l)
	if err != nil {
		return nil, err
	}
	from, can := at.(lister)
	if !can {
		return nil, errors.New("the store cannot list artifacts")
	}
	return from.paths(ctx)
}

// secrets reads secret files. An empty path means no secret.
func secrets(files ...string) ([]string, error) {
	out := make([]string, len(files))
	for i, file := range files {
		if file == "" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("secret: %w", err)
		}
		out[i] = strings.TrimSpace(string(data))
	}
	return out, nil
}

// source is a file or directory below a root. Links in it are not followed out of the root.
type source struct {
	root *os.Root
	name string
}

// isDir reports whether the source is a directory.
func (s source) isDir() (bool, error) {
	info, err := s.root.Stat(s.name)
	return err == nil && info.IsDir(), err
}

// files calls visit for each file of the source: for the file itself with an empty name, or for the
// files of the directory. Links to files in the directory count as files; other links are skipped.
func (s source) files(visit func(rel string, f *os.File, size int64) error) error {
	dir, err := s.isDir()
	if err != nil {
		return err
	}
	if !dir {
		return visitFile(s.root, s.name, "", visit)
	}
	root, err := s.root.OpenRoot(s.name)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := root.Stat(rel)
		if err != nil || !info.Mode().IsRegular() {
			return nil //nolint:nilerr // a link to nowhere, or out of the directory
		}
		return visitFile(root, rel, rel, visit)
	})
}

func visitFile(root *os.Root, name, rel string, visit func(string, *os.File, int64) error) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return visit(rel, f, info.Size())
}

// rawStore has an artifact whose content is in the manifest.
type rawStore struct{ raw *execapi.Raw }

func (s rawStore) load(_ context.Context, to string) error {
	return os.WriteFile(to, []byte(s.raw.Data), 0o644)
}
func (s rawStore) save(context.Context, source) error { return errors.New("raw: nothing can be saved") }
func (s rawStore) remove(context.Context) error       { return nil }

// volumeStore keeps an artifact at a path on a volume.
type volumeStore struct {
	file  *execapi.File
	prune int // number of enclosing directories to remove if they are empty
}

func (s volumeStore) load(_ context.Context, to string) error {
	root, err := os.OpenRoot(s.file.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	return archive.CopyFrom(root, s.file.Path, to)
}

func (s volumeStore) save(context.Context, source) error {
	return errors.New("volume: main saves it itself")
}

func (s volumeStore) remove(context.Context) error {
	root, err := os.OpenRoot(s.file.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	if s.file.Path == "" || s.file.Path == "." {
		return errors.New("volume: no key")
	}
	if err := root.RemoveAll(s.file.Path); err != nil {
		return err
	}
	for dir, n := path.Dir(s.file.Path), s.prune; n > 0 && dir != "."; dir, n = path.Dir(dir), n-1 {
		if root.Remove(dir) != nil {
			break // the directory is not empty
		}
	}
	return nil
}

// paths returns the files below the key, as keys.
func (s volumeStore) paths(context.Context) ([]string, error) {
	root, err := os.OpenRoot(s.file.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var found []string
	err = fs.WalkDir(root.FS(), path.Clean(s.file.Path), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			found = append(found, name)
		}
		if len(found) > pathsMax {
			return fmt.Errorf("more than %d files", pathsMax)
		}
		return err
	})
	return found, err
}
