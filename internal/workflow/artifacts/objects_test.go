package artifacts

import (
	"context"
	"errors"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// memory is a bucket of texts by key.
type memory map[string]string

func (m memory) ready(context.Context) error { return nil }
func (m memory) shown(key string) string     { return "mem://" + key }

func (m memory) get(_ context.Context, key, file string) error {
	text, found := m[key]
	if !found {
		return os.ErrNotExist
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

func (m memory) put(context.Context, string, *os.File, int64) error { return errors.New("read only") }

func (m memory) list(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if strings.HasPrefix(key, prefix) && !yield(key, nil) {
				return
			}
		}
	}
}

func (m memory) drop(_ context.Context, key string) error {
	if _, found := m[key]; !found {
		return os.ErrNotExist
	}
	delete(m, key)
	return nil
}

// TestKeysStayInTheirDirectory checks that no key of a store is written outside of the artifact's
// directory, and what directories of objects become.
func TestKeysStayInTheirDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		bucket      memory
		key         string
		want, fault string
	}{
		"an object":                    {memory{"k": "one", "k/a": "two", "kk": "three"}, "k", "=one", ""},
		"a directory":                  {memory{"k/a": "one", "k/deep/b": "two", "kk": "three"}, "k", "a=one deep/b=two", ""},
		"a directory beside an object": {memory{"k": "one", "k/a": "two"}, "k/", "a=two", ""},
		"the whole bucket":             {memory{"a": "one", "b/c": "two"}, "", "a=one b/c=two", ""},
		"a marker of a directory":      {memory{"k/": ""}, "k", "", ""},
		"out of the directory":         {memory{"k/../../evil": "x"}, "k", "", "leads out of the directory"},
		"an absolute key":              {memory{"k//etc/evil": "x"}, "k", "", "leads out of the directory"},
		"nothing":                      {memory{"kk": "x"}, "k", "", "mem://k"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "deep", "in")
			if err := os.Mkdir(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			err := objectStore{c.bucket, c.key}.load(t.Context(), to)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("%v, want %q", err, c.fault)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			var got []string
			err = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					got = append(got, strings.TrimPrefix(strings.TrimPrefix(name, to), "/")+"="+content(t, name))
				}
				return err
			})
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
	t.Run("a directory is removed with its object, and nothing beside it", func(t *testing.T) {
		m := memory{"k": "", "k/a": "", "kk": ""}
		for range 2 {
			if err := (objectStore{m, "k"}).remove(t.Context()); err != nil || len(m) != 1 {
				t.Errorf("%v, left %v", err, m)
			}
		}
		if err := (objectStore{m, ""}).remove(t.Context()); err == nil {
			t.Error("without a key, the whole bucket may be removed")
		}
	})
}
