package ociimage

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAProgramRunsInItsRootAlone has a dynamic program of this machine, where there is one and chroot is allowed.
func TestAProgramRunsInItsRootAlone(t *testing.T) {
	program, err := exec.LookPath("true")
	if err != nil {
		t.Skip(err)
	}
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	root := t.TempDir()
	if err := AddProgram(root, "/opt/tool", program); err != nil {
		t.Fatal(err)
	}
	chroot, err := exec.LookPath("chroot")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(chroot, root, "/opt/tool").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if err := AddProgram(root, "/x", filepath.Join(root, "missing")); err == nil {
		t.Error("a program that is not there is copied")
	}
}
