package entrypoint

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// login is an entry of a pull secret.
type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
	// Auth is username:password in base64, which other fields override.
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credential returns the credential that pull secrets have for a repository of a registry. Of
// several the one with the longest matching path counts, and of equal ones the first. Secrets of
// other types, and those that cannot be decoded, have none: an image may need no credentials.
func credential(secrets []*corev1.Secret, host, repository string) auth.Credential {
	best, found := -1, auth.EmptyCredential
	for _, s := range secrets {
		entries := logins(s)
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			if n := matches(name, host, repository); n > best {
				best, found = n, entries[name].credential()
			}
		}
	}
	return found
}

func logins(s *corev1.Secret) map[string]login {
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var config struct {
			Auths map[string]login `json:"auths"`
		}
		if json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &config) == nil {
			return config.Auths
		}
	case corev1.SecretTypeDockercfg:
		var auths map[string]login
		if json.Unmarshal(s.Data[corev1.DockerConfigKey], &auths) == nil {
			return auths
		}
	}
	return nil
}

func (l login) credential() auth.Credential {
	c := auth.Credential{Username: l.Username, Password: l.Password, RefreshToken: l.IdentityToken, AccessToken: l.RegistryToken}
	if both, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && c.Username == "" {
		c.Username, c.Password, _ = strings.Cut(strings.TrimRight(string(both), "\x00"), ":")
	}
	return c
}

// matches returns the length of the path of an entry of a pull secret that covers a repository, or
// -1 if the entry is for another registry or path.
func matches(entry, host, repository string) int {
	entry = strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
	name, path, _ := strings.Cut(entry, "/")
	path = strings.Trim(path, "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	if name == "index.docker.io" || name == hubHost {
		name = hub
	}
	switch {
	case name != host:
		return -1
	case path == "" || path == repository || strings.HasPrefix(repository, path+"/"):
		return len(path)
	}
	return -1
}
