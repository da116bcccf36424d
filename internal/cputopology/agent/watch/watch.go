// Package watch tells when somebody changes the cgroups of pods: makes one, or writes a CPU set.
//
// The kernel reports what goes through its file system in the same cgroup namespace, as kubelets and runtimes on the node
// do. What it does not report (CPUs that go off line, changes from within a cgroup namespace) has to be looked for.
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
	// Changed gets a value after a change; several changes may be one value.
	Changed <-chan struct{}

	changed chan struct{}
	inotify *fsnotify.Watcher
	root    string
	watched map[string]bool
}

// New watches cgroups below a hierarchy's root.
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

// Close ends the watch.
func (w *Watcher) Close() error { return w.inotify.Close() }

func (w *Watcher) forward() {
	events, errs := w.inotify.Events, w.inotify.Errors
	for events != nil && errs != nil {
		select {
		case event, open := <-events:
			if !open {
				return
			}
			// A new cgroup, or a set: not the processes that are put into it.
			if !event.Has(fsnotify.Create) && !(event.Has(fsnotify.Write) && strings.HasPrefix(filepath.Base(event.Name), "cpuset.")) {
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

// Watch watches these cgroups and no others. It says whether there are new ones among them, in which something may have
// changed before. An error says that some are not watched; they are tried again the next time.
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
			_ = w.inotify.Remove(filepath.Join(w.root, dir)) // gone with the cgroup
		}
	}
	return added, err
}
