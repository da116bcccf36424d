package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// tree describes files as a map from path to content. Paths of directories end in "/", and the
// content of a link is "-> TARGET".
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			out[rel+"/"] = info.Mode().Perm().String()
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out[rel] = "-> " + target
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[rel] = info.Mode().Perm().String() + " " + string(data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, file, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
}

func example(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "example")
	write(t, filepath.Join(dir, "a"), "one", 0o644)
	write(t, filepath.Join(dir, "sub", "run.sh"), "two", 0o755)
	write(t, filepath.Join(dir, "sub", "empty"), "", 0o600)
	if err := os.MkdirAll(filepath.Join(dir, "nothing"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/run.sh", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhatIsPackedComesBack(t *testing.T) {
	level := int32(0)
	for name, c := range map[string]struct {
		kind  execapi.Archive
		level *int32
	}{
		"tar": {execapi.ArchiveTar, nil}, "tar without compression": {execapi.ArchiveTar, &level}, "zip": {execapi.ArchiveZip, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir, out := example(t), t.TempDir()
			for _, what := range []string{dir, filepath.Join(dir, "sub", "run.sh")} {
				packed, back := filepath.Join(out, "packed"), filepath.Join(out, "back-"+filepath.Base(what))
				if err := Pack(what, packed, c.kind, c.level); err != nil {
					t.Fatal(err)
				}
				if err := Unpack(packed, back); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tree(t, what), tree(t, back)); diff != "" {
					t.Error(diff)
				}
				if left, _ := os.ReadDir(out); len(left) > 2 {
					t.Errorf("left over: %v", left)
				}
			}
		})
	}
}

func TestACopyIsEqual(t *testing.T) {
	dir := example(t)
	to := filepath.Join(t.TempDir(), "copy")
	if err := Pack(dir, to, execapi.ArchiveNone, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, dir), tree(t, to)); diff != "" {
		t.Error(diff)
	}
}

func TestAFileThatIsNoArchiveStaysAsItIs(t *testing.T) {
	for name, content := range map[string]string{
		"text": "hello", "nothing": "", "gzip of a text": gzipped("hello"), "the start of a zip": "PK", "half a gzip": "\x1f\x8b\x08",
	} {
		t.Run(name, func(t *testing.T) {
			from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
			write(t, from, content, 0o644)
			if err := Unpack(from, to); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(to); string(got) != content {
				t.Errorf("%q", got)
			}
		})
	}
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(text))
	z.Close()
	return b.String()
}

func TestSeveralEntriesAtTheTopAreADirectory(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	write(t, from, string(tarOf(&tar.Header{Name: "./a", Size: 1, Mode: 0o644}, &tar.Header{Name: "b/c", Size: 1, Mode: 0o644})), 0o644)
	if err := Unpack(from, to); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"./": "-rwxr-xr-x", "a": "-rw-r--r-- x", "b/": "-rwxr-xr-x", "b/c": "-rw-r--r-- x"}
	if diff := cmp.Diff(want, tree(t, to)); diff != "" {
		t.Error(diff)
	}
}

func tarOf(headers ...*tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		w.Write([]byte(strings.Repeat("x", int(h.Size))))
	}
	w.Close()
	return b.Bytes()
}

func TestNothingIsWrittenOutside(t *testing.T) {
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	f, err := z.Create("../outside")
	if err != nil {
		t.Fatal(err)
	}
	f.Write([]byte("x"))
	z.Close()
	for name, data := range map[string][]byte{
		"by a name":           tarOf(&tar.Header{Name: "../outside", Size: 1, Mode: 0o644}),
		"by a link":           tarOf(&tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: ".."}, &tar.Header{Name: "d/outside", Size: 1, Mode: 0o644}),
		"by an absolute link": tarOf(&tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, &tar.Header{Name: "d/lockstep-outside", Size: 1, Mode: 0o644}),
		"by a hard link":      tarOf(&tar.Header{Name: "d", Typeflag: tar.TypeLink, Linkname: "../../from"}),
		"by a zip":            zipped.Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := filepath.Join(dir, "from")
			write(t, from, string(data), 0o644)
			if err := Unpack(from, filepath.Join(dir, "in", "to")); err == nil {
				t.Error("no error")
			}
			for _, outside := range []string{filepath.Join(dir, "outside"), filepath.Join(dir, "in", "outside"), "/tmp/lockstep-outside"} {
				if _, err := os.Lstat(outside); err == nil {
					t.Errorf("%s exists", outside)
				}
			}
		})
	}
}

func TestALinkIsNotFollowedOutOfARoot(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), "s3cret", 0o600)
	if err := os.MkdirAll(filepath.Join(dir, "volume"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../secret", filepath.Join(dir, "volume", "artifact")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "volume"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := CopyFrom(root, "artifact", filepath.Join(dir, "copy")); err == nil {
		t.Error("no error")
	}
}
