package addons

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"lockstep.dev/lockstep/internal/application/addon"
)

// At returns the registry at an address, which may be a folder. kind is a type of registries, or empty
// for the type that follows from the address.
func At(name, address, kind, path string) (*addon.Registry, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address of the registry cannot be read")
	}
	if _, password := u.User.Password(); password || u.User != nil && u.Scheme != "ssh" {
		return nil, errors.New("a password is not part of an address: give it with --password-stdin")
	}
	if kind == "" {
		kind = addon.TypeHelm
		switch {
		case u.Scheme == "oci":
			kind = addon.TypeOCI
		case strings.HasSuffix(u.Path, ".git") || u.Scheme == "ssh" || u.Scheme == "git":
			kind = addon.TypeGit
		case u.Scheme == "":
			kind = addon.TypeFolder
		}
	}
	if path != "" && kind != addon.TypeGit {
		return nil, errors.New("only a Git repository has a path")
	}
	switch kind {
	case addon.TypeFolder:
		return &addon.Registry{Name: name, Folder: address}, nil
	case addon.TypeGit:
		if u.Host == "" {
			return nil, fmt.Errorf("%q is no address of a Git repository", address)
		}
		return &addon.Registry{Name: name, Git: &addon.Git{URL: address, Path: path}}, nil
	}
	if u.Host == "" || kind == addon.TypeOCI && u.Scheme != "oci" || kind == addon.TypeHelm && u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q is no address of a registry: it begins with https://, http:// or oci://", address)
	}
	return &addon.Registry{Name: name, Helm: &addon.Helm{URL: address}}, nil
}
