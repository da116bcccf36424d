package ociimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Static returns an error unless the program at path is static: an ELF program that names no loader
// and no library. Only a static program starts in an image that contains nothing else.
func Static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("program %s: %w", path, err)
	}
	defer f.Close()
	var needs []string
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return fmt.Errorf("program %s: %w", path, err)
		}
		needs = append(needs, strings.TrimRight(string(name), "\x00"))
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("program %s: %w", path, err)
	}
	if needs = append(needs, libraries...); len(needs) > 0 {
		return fmt.Errorf("program %s is not static: it needs %s, which the image does not have; build it with "+
			"CGO_ENABLED=0, as 'make build' does", path, strings.Join(needs, ", "))
	}
	return nil
}

// AddProgram copies a static program of this machine to the path at in a root file system.
func AddProgram(root, at, program string) error {
	if err := Static(program); err != nil {
		return err
	}
	return CopyFile(program, filepath.Join(root, at), 0o755)
}

// CopyFile copies a file into a root file system and creates the directories for it.
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
