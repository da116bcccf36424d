// Package bundle finds the names of containers in files that container runtimes keep about running
// containers. The API has the names only a second or two after a container has started; these files
// exist before it starts.
package bundle

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Defaults are the paths of a container's configuration in containerd and CRI-O, with %s for the
// container's ID.
var Defaults = []string{
	"/run/containerd/io.containerd.runtime.v2.task/k8s.io/%s/config.json",
	"/run/containers/storage/overlay-containers/%s/userdata/config.json",
}

// Names is a list of path patterns of container configurations.
type Names []string

// annotations are the annotations in which runtimes record the name.
var annotations = []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name"}

// configBytesMax bounds the size of a configuration, whose environment alone may take a megabyte.
const configBytesMax = 8 << 20

// idBytesMin is shorter than the IDs of any runtime, and longer than names with a special meaning
// in a path.
const idBytesMin = 12

// Name returns the name of the container with an ID. It returns false if no runtime knows the
// container, or if it is a pod's sandbox.
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
	// Only the annotations are kept, because the file contains the container's environment.
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
