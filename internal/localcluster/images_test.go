package localcluster_test

import (
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes/ociimage"
)

const source = "../.."

// stage is a stage of the Dockerfile.
type stage struct {
	from       string
	programs   map[string]string
	entrypoint []string
}

// dockerfile parses the stages of the Dockerfile. It fails on an unknown instruction, which could
// make the image differ from the one that the tests run.
func dockerfile(t *testing.T) map[string]*stage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(source, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	stages := map[string]*stage{}
	var last *stage
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		switch {
		case words[0] == "FROM" && len(words) == 4 && words[2] == "AS":
			last = &stage{from: words[1], programs: map[string]string{}}
			stages[words[3]] = last
		case words[0] == "COPY" && len(words) > 2:
			to := words[len(words)-1]
			for _, from := range words[1 : len(words)-1] {
				at := to
				if strings.HasSuffix(to, "/") {
					at = path.Join(to, path.Base(from))
				}
				if path.Dir(from) != "bin" {
					t.Errorf("%s is copied, which make build does not make", from)
				}
				last.programs[path.Base(from)] = at
			}
		case words[0] == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "ENTRYPOINT")), &last.entrypoint); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("Dockerfile: what does this do to the image? %s", line)
		}
	}
	return stages
}

// TestImagesOfRealNodesAreThoseOfTheDockerfile checks that real nodes run the images that are
// shipped.
func TestImagesOfRealNodesAreThoseOfTheDockerfile(t *testing.T) {
	stages := dockerfile(t)
	if base := stages["base"]; base == nil || base.from != "gcr.io/distroless/static-debian12" || len(base.programs) > 0 {
		t.Errorf("the base is %+v; localcluster.base says what another one has", base)
	}
	delete(stages, "base")
	for _, i := range []localcluster.ShippedImage{localcluster.ManagerImage(), localcluster.ExecutorImage()} {
		s := stages[i.Target]
		if s == nil || s.from != "base" || !maps.Equal(s.programs, i.Programs) || !slices.Equal(s.entrypoint, i.Entrypoint) {
			t.Errorf("image %s has %v and starts %v; in the Dockerfile it is %+v", i.Target, i.Programs, i.Entrypoint, s)
		}
		delete(stages, i.Target)
	}
	for name := range stages {
		t.Errorf("target %s of the Dockerfile is not tested", name)
	}
}

// TestShippedProgramsAreStatic checks that the programs built by make are static.
func TestShippedProgramsAreStatic(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(source, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	ignore, err := os.ReadFile(filepath.Join(source, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range dockerfile(t) {
		for name := range s.programs {
			if !strings.Contains(string(ignore), "\n!bin/"+name+"\n") {
				t.Errorf(".dockerignore keeps bin/%s from Docker", name)
			}
			if !strings.Contains(string(makefile), "bin/"+name) {
				t.Errorf("make build does not make bin/%s", name)
			}
			built := filepath.Join(source, "bin", name)
			if _, err := os.Stat(built); os.IsNotExist(err) {
				t.Logf("bin/%s is not built", name)
				continue
			}
			if err := ociimage.Static(built); err != nil {
				t.Error(err)
			}
		}
	}
}
