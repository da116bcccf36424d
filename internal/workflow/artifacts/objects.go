package artifacts

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// bucket is a flat store of objects: a bucket of S3, Google or Alibaba, or a container of Azure.
type bucket interface {
	// ready prepares the bucket for objects to be stored.
	ready(ctx context.Context) error
	// get writes an object to a file. The error wraps os.ErrNotExist if there is no such object.
	get(ctx context.Context, key, file string) error
	// put stores a file as an object.
	put(ctx context.Context, key string, f *os.File, size int64) error
	// list returns the keys that begin with prefix.
	list(ctx context.Context, prefix string) iter.Seq2[string, error]
	// drop deletes an object. The error wraps os.ErrNotExist if there is no such object.
	drop(ctx context.Context, key string) error
	// shown returns the address of an object, for messages.
	shown(key string) string
}

// objectStore keeps an artifact as one object, or as all objects below a key.
type objectStore struct {
	bucket
	key string
}

// wrap adds the name of the object to an error.
func (s objectStore) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", s.shown(s.key), err)
}

// prefix returns the key prefix of the objects of a directory.
func (s objectStore) prefix() string {
	if s.key == "" {
		return ""
	}
	return strings.TrimSuffix(s.key, "/") + "/"
}

func (s objectStore) load(ctx context.Context, to string) error {
	missing := os.ErrNotExist
	if s.key != s.prefix() {
		err := s.get(ctx, s.key, to)
		if !errors.Is(err, os.ErrNotExist) {
			return s.wrap(err)
		}
		missing = err
	}
	prefix, found := s.prefix(), false
	for key, err := range s.list(ctx, prefix) {
		if err != nil {
			return s.wrap(err)
		}
		found = true
		rel := strings.TrimPrefix(key, prefix)
		if rel == "" || strings.HasSuffix(rel, "/") { // a marker of an empty directory
			if err := os.MkdirAll(to, 0o777); err != nil {
				return err
			}
			continue
		}
		if !filepath.IsLocal(rel) {
			return s.wrap(fmt.Errorf("key '%s' leads out of the directory", key))
		}
		file := filepath.Join(to, rel)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			return err
		}
		if err := s.get(ctx, key, file); err != nil {
			return s.wrap(err)
		}
	}
	if !found {
		return s.wrap(missing)
	}
	return nil
}

func (s objectStore) save(ctx context.Context, from source) error {
	if err := s.ready(ctx); err != nil {
		return s.wrap(err)
	}
	return s.wrap(from.files(func(rel string, f *os.File, size int64) error {
		key := s.key
		if rel != "" {
			key = path.Join(key, rel)
		}
		return s.put(ctx, key, f, size)
	}))
}

func (s objectStore) remove(ctx context.Context) error {
	if s.key == "" {
		return s.wrap(errors.New("no key"))
	}
	if err := s.drop(ctx, s.key); err != nil && !errors.Is(err, os.ErrNotExist) {
		return s.wrap(err)
	}
	for key, err := range s.list(ctx, s.prefix()) {
		if err == nil {
			err = s.drop(ctx, key)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return s.wrap(err)
		}
	}
	return nil
}

// paths returns the keys below the artifact's own.
func (s objectStore) paths(ctx context.Context) ([]string, error) {
	var keys []string
	for key, err := range s.list(ctx, s.key) {
		if err != nil {
			return nil, s.wrap(err)
		}
		if len(keys) == pathsMax {
			return nil, s.wrap(fmt.Errorf("more than %d objects", pathsMax))
		}
		keys = append(keys, key)
	}
	return keys, nil
}
