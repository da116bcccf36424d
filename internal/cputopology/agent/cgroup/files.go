package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Files is a hierarchy of cgroups with the cpuset controller. Names are slash-separated and
// relative to the hierarchy's root. Errors are the kernel's, for use with errors.Is.
type Files interface {
	ReadFile(name string) ([]byte, error)
	WriteFile(name, content string) error
	// List returns the names of a cgroup's children, sorted.
	List(dir string) ([]string, error)
}

// Version is the version of the kernel's interface to cgroups.
type Version int

// The versions.
const (
	V1 Version = 1
	V2 Version = 2
)

func (v Version) String() string { return fmt.Sprintf("v%d", int(v)) }

// Find returns the hierarchy with the cpuset controller below mount, usually /sys/fs/cgroup.
func Find(mount string) (Version, Dir, error) {
	data, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err == nil && slices.Contains(strings.Fields(string(data)), "cpuset") {
		return V2, Dir(mount), nil
	}
	v1 := filepath.Join(mount, "cpuset")
	if _, err := os.Stat(filepath.Join(v1, fileCPUs)); err == nil {
		return V1, Dir(v1), nil
	}
	return 0, "", fmt.Errorf(
		"%s: no cgroup hierarchy has the cpuset controller: neither %s/cgroup.controllers lists it, nor is %s one of "+
			"version 1", mount, mount, v1)
}

// Dir implements Files on the kernel's file system. Its value is the path of the hierarchy's root.
type Dir string

var _ Files = Dir("")

// fileBytesMax bounds the size of a file that is read. The CPU list of the largest machine is
// shorter.
const fileBytesMax = 1 << 16

// ReadFile implements Files.
func (d Dir) ReadFile(name string) ([]byte, error) {
	path := d.path(name)
	fd, err := open(path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readAll(fd, path)
}

func open(path string, flags int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0) })
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// readAll reads a file from its beginning.
func readAll(fd int, path string) ([]byte, error) {
	buf := make([]byte, 0, 64)
	for {
		n, err := retry(func() (int, error) { return unix.Pread(fd, buf[len(buf):cap(buf)], int64(len(buf))) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return buf, nil
		}
		// The files have one line. On plain files that stand in for a kernel's, the rest is the end
		// of a longer previous value.
		if i := bytes.IndexByte(buf[len(buf):len(buf)+n], '\n'); i >= 0 {
			return buf[:len(buf)+i+1], nil
		}
		buf = buf[:len(buf)+n]
		if len(buf) > fileBytesMax {
			return nil, &fs.PathError{Op: "read", Path: path, Err: unix.EFBIG}
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, 4*cap(buf))
		}
	}
}

// WriteFile implements Files. It never creates a file.
func (d Dir) WriteFile(name, content string) error {
	path := d.path(name)
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	// One call, because the kernel takes each write as a separate value.
	if _, err := retry(func() (int, error) { return unix.Write(fd, []byte(content)) }); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// direntBytes is enough for the names in a directory of a hundred cgroups.
const direntBytes = 8 << 10

// List implements Files.
func (d Dir) List(dir string) ([]string, error) {
	path := d.path(dir)
	fd, err := open(path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return list(fd, path)
}

// list reads a directory from its present position to its end.
func list(fd int, path string) ([]string, error) {
	var names []string
	buf := make([]byte, direntBytes)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return nil, &fs.PathError{Op: "list", Path: path, Err: err}
		}
		if n == 0 {
			slices.Sort(names)
			return names, nil
		}
		names = appendDirs(names, buf[:n])
	}
}

// appendDirs adds the directories among the entries written by the kernel. Each entry is inode (8
// bytes), offset (8), length (2), type (1), and a name that ends with a zero byte.
func appendDirs(names []string, entries []byte) []string {
	for len(entries) > 19 {
		length := int(entries[16]) | int(entries[17])<<8
		if length < 19 || length > len(entries) {
			return names
		}
		name := entries[19:length]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if entries[18] == unix.DT_DIR && string(name) != "." && string(name) != ".." {
			names = append(names, string(name))
		}
		entries = entries[length:]
	}
	return names
}

func (d Dir) path(name string) string { return filepath.Join(string(d), name) }
