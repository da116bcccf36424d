package ociimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// AddProgram copies a program of this machine into a root file system, to the path at, with the libraries that it is linked
// to, at their own paths.
func AddProgram(root, at, program string) error {
	files, err := libraries(program)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := CopyFile(file, filepath.Join(root, file), 0o755); err != nil {
			return err
		}
	}
	return CopyFile(program, filepath.Join(root, at), 0o755)
}

// libraries are a program's loader and what that would load, by its own account; none of a static program's.
func libraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", program, err)
	}
	defer f.Close()
	loader := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, fmt.Errorf("program %s: %w", program, err)
			}
			loader = strings.TrimRight(string(name), "\x00")
		}
	}
	if loader == "" {
		return nil, nil
	}
	list, err := exec.Command(loader, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("libraries of %s: %w", program, err)
	}
	files := []string{loader}
	for line := range strings.Lines(string(list)) {
		// name => /path (address); the loader and what the kernel provides have no arrow
		if _, target, found := strings.Cut(line, "=>"); found {
			path := strings.TrimSpace(target)
			if i := strings.LastIndex(path, " ("); i >= 0 {
				path = path[:i]
			}
			if !filepath.IsAbs(path) {
				return nil, fmt.Errorf("libraries of %s: %s", program, strings.TrimSpace(line))
			}
			files = append(files, path)
		}
	}
	return files, nil
}

// CopyFile copies a file into a root file system, with the folders that it needs there.
func CopyFile(from, to string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
