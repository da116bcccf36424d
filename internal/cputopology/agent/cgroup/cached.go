package cgroup

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// Cached is a Dir that keeps files and directories open between reads. Looking up a file by its
// path costs the kernel several times as much as reading it, and an agent reads many hundreds of
// files per second. It must be used by one goroutine only.
type Cached struct {
	Dir
	open  map[string]*opened
	round int
}

// opened is an open file or directory; round is the round in which it was last read.
type opened struct {
	fd, round int
}

// openMax bounds the number of files kept open. It is twice the number that the containers of a
// large node need.
const openMax = 4096

var _ Files = (*Cached)(nil)

// NewCached returns a Cached for the files below dir.
func NewCached(dir Dir) *Cached { return &Cached{Dir: dir, open: map[string]*opened{}} }

// ReadFile implements Files.
func (c *Cached) ReadFile(name string) ([]byte, error) {
	var data []byte
	err := c.with(name, 0, func(fd int, path string) (err error) {
		data, err = readAll(fd, path)
		return err
	})
	return data, err
}

// List implements Files.
func (c *Cached) List(dir string) ([]string, error) {
	var names []string
	err := c.with(dir, unix.O_DIRECTORY, func(fd int, path string) error {
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return &fs.PathError{Op: "list", Path: path, Err: err}
		}
		var err error
		names, err = list(fd, path)
		return err
	})
	return names, err
}

// with calls use with an open file. A file that has been kept open may belong to a cgroup that is
// gone; in that case the path is opened again.
func (c *Cached) with(name string, flags int, use func(fd int, path string) error) error {
	path := c.path(name)
	o := c.open[name]
	if o != nil {
		o.round = c.round
		err := use(o.fd, path)
		if err == nil {
			return nil
		}
		unix.Close(o.fd)
		delete(c.open, name)
	}
	fd, err := open(path, flags)
	if err != nil {
		return err
	}
	if err := use(fd, path); err != nil || len(c.open) >= openMax {
		unix.Close(fd)
		return err
	}
	c.open[name] = &opened{fd, c.round}
	return nil
}

// Sweep closes the files that have not been read since the last Sweep.
func (c *Cached) Sweep() {
	for name, o := range c.open {
		if o.round != c.round {
			unix.Close(o.fd)
			delete(c.open, name)
		}
	}
	c.round++
}
