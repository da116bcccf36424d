package entrypoint

import (
	"fmt"
	"strings"

	"oras.land/oras-go/v2/registry"
)

const (
	// hub is the registry of images whose name has no registry; hubHost is where it answers.
	hub     = "docker.io"
	hubHost = "registry-1.docker.io"
)

// reference parses the name of an image as container runtimes do: without a registry it is one of
// Docker Hub, without a tag it is latest, and a digest counts before a tag.
func reference(image string) (registry.Reference, error) {
	name, digest, pinned := strings.Cut(image, "@")
	host, path, found := strings.Cut(name, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, path = hub, name
	}
	if host == "index.docker.io" {
		host = hub
	}
	if host == hub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	tag := "latest"
	if at := strings.LastIndexByte(path, ':'); at > strings.LastIndexByte(path, '/') {
		path, tag = path[:at], path[at+1:]
	}
	full := host + "/" + path + ":" + tag
	if pinned {
		full = host + "/" + path + "@" + digest
	}
	ref, err := registry.ParseReference(full)
	if err != nil {
		return ref, fmt.Errorf("%q is not the name of an image", image)
	}
	return ref, nil
}
