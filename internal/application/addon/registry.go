package addon

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Registry is a place to get addons from. It is stored as JSON, in the format of KubeVela's list of registries.
type Registry struct {
	Name string `json:"name"`
	// Helm is a repository with an index, or an OCI registry if its address begins with oci://.
	Helm *Helm `json:"helm,omitempty"`
	Git  *Git  `json:"git,omitempty"`
	// Gitee and GitLab are Git repositories.
	Gitee  *Git    `json:"gitee,omitempty"`
	GitLab *GitLab `json:"gitlab,omitempty"`
	// OSS, a bucket, is kept in the list, and cannot be read.
	OSS json.RawMessage `json:"oss,omitempty"`
	// Folder is a folder on this machine with a folder for each addon. It is in no list.
	Folder string `json:"-"`
}

// Helm is a repository of charts.
type Helm struct {
	URL      string `json:"url,omitempty"`
	Username string `json:"username,omitempty"`
	// Password is in the list only where another program has written it there. Lockstep keeps it in a
	// Secret.
	Password        string `json:"password,omitempty"`
	InsecureSkipTLS bool   `json:"insecureSkipTLS,omitempty"`
}

// Git is a Git repository.
type Git struct {
	URL string `json:"url,omitempty"`
	// Path is the folder that has a folder for each addon.
	Path string `json:"path,omitempty"`
	// Token is in the list only where another program has written it there.
	Token string `json:"token,omitempty"`
	// TokenSecretRef names a Secret with a token.
	TokenSecretRef string `json:"tokenSecretRef,omitempty"`
}

// GitLab is a project of a GitLab server.
type GitLab struct {
	Git
	// Repo is the project, within URL.
	Repo string `json:"repo,omitempty"`
}

// Types of registries.
const (
	TypeHelm   = "helm"
	TypeOCI    = "oci"
	TypeGit    = "git"
	TypeFolder = "folder"
)

// Type returns the type of a registry.
func (r *Registry) Type() string {
	switch {
	case r.Folder != "":
		return TypeFolder
	case r.Helm != nil && strings.HasPrefix(r.Helm.URL, "oci://"):
		return TypeOCI
	case r.Helm != nil:
		return TypeHelm
	case r.Repository() != nil:
		return TypeGit
	case len(r.OSS) > 0:
		return "oss"
	}
	return ""
}

// String returns the name of a registry or, if it is in no list, its address.
func (r *Registry) String() string { return cmp.Or(r.Name, r.Address()) }

// Address returns where a registry is, for people.
func (r *Registry) Address() string {
	switch g := r.Repository(); {
	case r.Folder != "":
		return r.Folder
	case r.Helm != nil:
		return r.Helm.URL
	case g != nil && g.Path != "":
		return g.URL + " " + g.Path
	case g != nil:
		return g.URL
	}
	return ""
}

// Repository returns the Git repository of a registry, or nil.
func (r *Registry) Repository() *Git {
	switch {
	case r.Git != nil:
		return r.Git
	case r.Gitee != nil:
		return r.Gitee
	case r.GitLab != nil:
		g := r.GitLab.Git
		g.URL = strings.TrimSuffix(g.URL, "/") + "/" + r.GitLab.Repo
		return &g
	}
	return nil
}

// SetPassword sets the password or token that a registry is asked with.
func (r *Registry) SetPassword(password string) {
	switch {
	case r.Helm != nil:
		r.Helm.Password = password
	case r.Git != nil:
		r.Git.Token = password
	case r.Gitee != nil:
		r.Gitee.Token = password
	case r.GitLab != nil:
		r.GitLab.Token = password
	}
}

// Password returns the password or token.
func (r *Registry) Password() string {
	if r.Helm != nil {
		return r.Helm.Password
	}
	if g := r.Repository(); g != nil {
		return g.Token
	}
	return ""
}
