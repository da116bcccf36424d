// Package bundle finds the names of containers in the files that container runtimes keep of those that run. The API tells
// them too, a second or two after a container has started: these files are there before it starts.
package bundle

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Defaults are where containerd and CRI-O keep a container's configuration, with %s for its ID.
var Defaults = []string{
	"/run/containerd/io.containerd.runtime.v2.task/k8s.io/%s/config.json",
	"/run/containers/storage/overlay-containers/%s/userdata/config.json",
}

// Names finds names in the files of the patterns.
type Names []string

// annotations under which runtimes note the name.
var annotations = []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name"}

// configBytesMax bounds a configuration: its environment alone may take a megabyte.
const configBytesMax = 8 << 20

// idBytesMin is shorter than any runtime's IDs, and longer than names that mean something in a path.
const idBytesMin = 12

// Name returns the name of the container with an ID. It is not found if no runtime knows it, or if it is a pod's sandbox.
func (n Names) Name(id string) (string, bool) {
	if len(id) < idBytesMin || strings.Trim(id, "0123456789abcdef") != "" {
		return "", false
	}
	for _, pattern := range n {
		if name := read(fmt.Sprintf(pattern, filepath.Base(id))); name != "" {
			return name, true
		}
	}
	return "", false
}

func read(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var config struct {
		Annotations map[string]string `json:"annotations"`
	}
	// Nothing else of it is kept: it holds the container's environment.
	if json.NewDecoder(io.LimitReader(f, configBytesMax)).Decode(&config) != nil {
		return ""
	}
	for _, key := range annotations {
		if name := config.Annotations[key]; name != "" {
			return name
		}
	}
	return ""
}
