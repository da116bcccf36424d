// Package watch reports when cgroups of pods are created, or their CPU sets written, by other
// programs.
//
// The kernel reports changes made through its file system in the same cgroup namespace, as kubelets
// and runtimes on the node make them. Other changes (CPUs that go offline, changes from within
// another cgroup namespace) have to be found by polling.
package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Watcher watches a changing list of directories.
type Watcher struct {
	// Changed receives a value after a change; several changes may be combined in one value.
	Changed <-chan struct{}

	changed chan struct{}
	inotify *fsnotify.Watcher
	root    string
	watched map[string]bool
}

// New returns a Watcher for cgroups below a hierarchy's root.
func New(root string) (*Watcher, error) {
	inotify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watcher{inotify: inotify, root: root, watched: map[string]bool{}, changed: make(chan struct{}, 1)}
	w.Changed = w.changed
	go w.forward()
	return w, nil
}

// Close stops the watch.
func (w *Watcher) Close() error { return w.inotify.Close() }

func (w *Watcher) forward() {
	events, errs := w.inotify.Events, w.inotify.Errors
	for events != nil && errs != nil {
		select {
		case event, open := <-events:
			if !open {
				return
			}
			// Only new cgroups, and written sets and quotas count, not processes that are moved into a
			// cgroup.
			name := filepath.Base(event.Name)
			if !event.Has(fsnotify.Create) &&
				!(event.Has(fsnotify.Write) && (strings.HasPrefix(name, "cpuset.") || name == "cpu.max")) {
				continue
			}
		case err, open := <-errs:
			if !open {
				return
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				continue
			}
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// Watch sets the list of watched cgroups. It reports whether some of them are newly watched,
// because something may have changed in them before. An error means that some cgroups are not
// watched; they are tried again in the next call.
func (w *Watcher) Watch(dirs []string) (added bool, err error) {
	want := make(map[string]bool, len(dirs))
	for _, dir := range dirs {
		want[dir] = true
		if w.watched[dir] {
			continue
		}
		switch addErr := w.inotify.Add(filepath.Join(w.root, dir)); {
		case addErr == nil:
			w.watched[dir], added = true, true
		case !errors.Is(addErr, fs.ErrNotExist) && err == nil:
			err = fmt.Errorf("inotify: %s: %w", dir, addErr)
		}
	}
	for dir := range w.watched {
		if !want[dir] {
			delete(w.watched, dir)
			_ = w.inotify.Remove(filepath.Join(w.root, dir)) // already gone if the cgroup is
		}
	}
	return added, err
}
