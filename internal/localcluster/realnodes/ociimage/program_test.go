package ociimage

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build builds a program of the source, with or without cgo.
func build(t *testing.T, source, cgo string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "main.go")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "program")
	cmd := exec.Command("go", "build", "-o", out, path)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("go build with CGO_ENABLED=%s: %v: %s", cgo, err, text)
	}
	return out
}

// resolves is a program that looks up a name, which with cgo uses the C library.
const resolves = `package main

import "net"

func main() { _, _ = net.LookupHost("localhost") }
`

func TestOnlyStaticProgramsAreCopied(t *testing.T) {
	root := t.TempDir()
	static := build(t, resolves, "0")
	if err := AddProgram(root, "/opt/tool", static); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "opt/tool")); err != nil {
		t.Error(err)
	}
	if err := AddProgram(root, "/x", filepath.Join(root, "missing")); err == nil {
		t.Error("a program that is not there is copied")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no C compiler: there is no dynamic program to try")
	}
	dynamic := build(t, resolves, "1")
	if err := AddProgram(root, "/bin/tool", dynamic); err == nil || !strings.Contains(err.Error(), "libc") || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a dynamic program: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "bin")); err == nil {
		t.Errorf("of a dynamic program there is %v", entries)
	}
}
