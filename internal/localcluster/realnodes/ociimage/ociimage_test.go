package ociimage

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobs returns an archive's files by name.
func blobs(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFolderBecomesAnImage(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "tool"), []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(root, "bin", "tool"), filepath.Join(root, "bin", "twin")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tool", filepath.Join(root, "bin", "link")); err != nil {
		t.Fatal(err)
	}
	image := Image{Name: "localhost/x:1", Root: root, Command: []string{"/bin/tool"}, Env: []string{"A=b"}}
	var archive, again bytes.Buffer
	if err := Write(&archive, image); err != nil {
		t.Fatal(err)
	}
	if err := Write(&again, image); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("equal folders give different archives")
	}
	files := blobs(t, archive.Bytes())
	var index v1.Index
	if err := json.Unmarshal(files[v1.ImageIndexFile], &index); err != nil {
		t.Fatal(err)
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(files[blobPath(index.Manifests[0].Digest)], &manifest); err != nil {
		t.Fatal(err)
	}
	var config v1.Image
	if err := json.Unmarshal(files[blobPath(manifest.Config.Digest)], &config); err != nil {
		t.Fatal(err)
	}
	if config.Config.Cmd[0] != "/bin/tool" || config.Config.Env[0] != "A=b" || index.Manifests[0].Annotations[v1.AnnotationRefName] != "localhost/x:1" {
		t.Errorf("config %+v, annotations %v", config.Config, index.Manifests[0].Annotations)
	}
	r := tar.NewReader(bytes.NewReader(files[blobPath(manifest.Layers[0].Digest)]))
	var got []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		got = append(got, h.Name+"="+h.Linkname)
	}
	if want := "bin/= bin/link=tool bin/tool= bin/twin=bin/tool"; strings.Join(got, " ") != want {
		t.Errorf("layer %q, want %q", strings.Join(got, " "), want)
	}
}

func TestThePauseProgramSleepsUntilItIsEnded(t *testing.T) {
	program, err := pauseProgram(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The program ignores the first signal, and ends at the second.
	for _, s := range []syscall.Signal{syscall.SIGCHLD, syscall.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %s", cmd.ProcessState)
	}
}

func TestPauseProgramsAreWellFormed(t *testing.T) {
	for arch, p := range pauseCode {
		program, err := pauseProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != p.machine || len(f.Progs) != 1 || f.Entry != f.Progs[0].Vaddr+64+56 || f.Progs[0].Filesz != uint64(len(program)) {
			t.Errorf("%s: %+v", arch, f.FileHeader)
		}
	}
}
