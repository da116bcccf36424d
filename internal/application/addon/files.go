package addon

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/unpack"
)

// Bounds on an addon's files.
const (
	FilesMax = 2_000
	// BytesMax bounds the sum of the sizes.
	BytesMax = 16 << 20
)

// Files are the files of an addon by their paths, which are relative to the addon and have slashes.
type Files map[string][]byte

// Add adds a file. It refuses a path that leads out of the addon, and files beyond the bounds.
func (f Files) Add(name string, data []byte) error {
	if !inside(name) {
		return fmt.Errorf("the file %q is not inside the addon", name)
	}
	if len(f) >= FilesMax {
		return fmt.Errorf("the addon has more than %d files", FilesMax)
	}
	size := len(data)
	for _, other := range f {
		size += len(other)
	}
	if size > BytesMax {
		return &unpack.TooLargeError{What: "the addon", Most: BytesMax, Units: "bytes"}
	}
	f[name] = data
	return nil
}

// inside reports whether a path is one of a file inside a folder, in its shortest form.
func inside(name string) bool {
	return name != "." && name != ".." && path.Clean(name) == name && !path.IsAbs(name) && !strings.HasPrefix(name, "../") && !strings.Contains(name, `\`)
}

// in returns the paths of the files in a folder and in the folders inside it, sorted: those with one
// of the extensions, or all if there are none.
func (f Files) in(folder string, extensions ...string) []string {
	var out []string
	for name := range f {
		if strings.HasPrefix(name, folder+"/") && (len(extensions) == 0 || slices.Contains(extensions, path.Ext(name))) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Unpack reads an archive, which has all files in one folder. Links and devices are refused.
func Unpack(archive []byte) (Files, error) {
	data, err := unpack.Gzip(archive, unpack.Addon)
	if err != nil {
		return nil, fmt.Errorf("this is not a packed addon: %w", err)
	}
	out, top := Files{}, ""
	for files := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, errors.New("this is not a packed addon: it is no tar archive, or a part of it is missing")
		}
		switch header.Typeflag {
		case tar.TypeDir, tar.TypeXGlobalHeader:
			continue
		case tar.TypeReg:
		default:
			return nil, fmt.Errorf("the archive has %q, which is neither a file nor a folder", header.Name)
		}
		folder, name, ok := strings.Cut(strings.TrimPrefix(header.Name, "./"), "/")
		if !ok || folder == "" || top != "" && folder != top {
			return nil, fmt.Errorf("the archive has %q outside of its folder", header.Name)
		}
		top = folder
		text, err := io.ReadAll(files)
		if err != nil {
			return nil, errors.New("this is not a packed addon: a part of it is missing")
		}
		if err := out.Add(name, text); err != nil {
			return nil, err
		}
	}
}
