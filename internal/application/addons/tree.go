package addons

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"lockstep.dev/lockstep/internal/application/addon"
)

// tree is a folder with a folder for each addon.
type tree struct {
	fs.FS
	close func()
}

// openTree opens a folder, or a clone of a Git repository.
func openTree(ctx context.Context, r *addon.Registry) (*tree, error) {
	if g := r.Repository(); g != nil {
		return clone(ctx, g)
	}
	root, err := os.OpenRoot(r.Folder)
	if err != nil {
		return nil, err
	}
	return &tree{root.FS(), func() { _ = root.Close() }}, nil
}

// Folder reads the addon in a folder.
func Folder(dir string) (*addon.Addon, error) {
	root, err := os.OpenRoot(dir) // links do not lead out of it
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	a, err := read(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return a, nil
}

// addon reads the addon of a name.
func (t *tree) addon(name string) (*addon.Addon, error) {
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return nil, ErrNone
	}
	if _, err := fs.Stat(t, path.Join(name, "metadata.yaml")); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	return read(t, name)
}

// list returns the addons that are not invisible.
func (t *tree) list() ([]Listed, error) {
	entries, err := fs.ReadDir(t, ".")
	if err != nil {
		return nil, err
	}
	var out []Listed
	for _, e := range entries {
		a, err := t.addon(e.Name())
		if err == nil && !a.Invisible {
			out = append(out, Listed{a.Name, a.Version, a.Description})
		}
	}
	return out, nil
}

// read reads the addon in a folder of f. Files and folders whose names begin with a dot are left out.
func read(f fs.FS, folder string) (*addon.Addon, error) {
	files := addon.Files{}
	err := fs.WalkDir(f, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != folder && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		info, err := fs.Stat(f, name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a folder", name)
		}
		if info.Size() > addon.BytesMax {
			return fmt.Errorf("%s has more than %d bytes", name, addon.BytesMax)
		}
		data, err := fs.ReadFile(f, name)
		if err != nil {
			return err
		}
		if folder != "." {
			name = strings.TrimPrefix(name, folder+"/")
		}
		return files.Add(name, data)
	})
	if err != nil {
		return nil, err
	}
	return addon.Open(files)
}
