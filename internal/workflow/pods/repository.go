package pods

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// repositoryConfig is the YAML form of a repository in a ConfigMap.
type repositoryConfig struct {
	ArchiveLogs *bool `json:"archiveLogs,omitempty"`
	S3          *struct {
		wf.S3Artifact `json:",inline"`
		KeyFormat     string `json:"keyFormat,omitempty"`
		KeyPrefix     string `json:"keyPrefix,omitempty"`
	} `json:"s3,omitempty"`
	Artifactory *struct {
		wf.ArtifactoryArtifact `json:",inline"`
		RepoURL                string `json:"repoURL,omitempty"`
		KeyFormat              string `json:"keyFormat,omitempty"`
	} `json:"artifactory,omitempty"`
	Volume *struct {
		wf.VolumeArtifact `json:",inline"`
		KeyFormat         string `json:"keyFormat,omitempty"`
	} `json:"volume,omitempty"`
	GCS *struct {
		wf.GCSArtifact `json:",inline"`
		KeyFormat      string `json:"keyFormat,omitempty"`
	} `json:"gcs,omitempty"`
	Azure *struct {
		wf.AzureArtifact `json:",inline"`
		BlobNameFormat   string `json:"blobNameFormat,omitempty"`
	} `json:"azure,omitempty"`
	HDFS *struct {
		wf.HDFSArtifact `json:",inline"`
		PathFormat      string `json:"pathFormat,omitempty"`
	} `json:"hdfs,omitempty"`
	OSS *struct {
		wf.OSSArtifact `json:",inline"`
		KeyFormat      string `json:"keyFormat,omitempty"`
	} `json:"oss,omitempty"`
}

// ParseRepository parses one key of a ConfigMap of repositories.
func ParseRepository(text string) (*Repository, error) {
	var c repositoryConfig
	if err := yamldoc.Unmarshal([]byte(text), &c, "the repository"); err != nil {
		return nil, err
	}
	r := &Repository{ArchiveLogs: c.ArchiveLogs != nil && *c.ArchiveLogs}
	switch {
	case c.S3 != nil:
		s := c.S3.S3Artifact
		r.KeyFormat = c.S3.KeyFormat
		if r.KeyFormat == "" && c.S3.KeyPrefix != "" {
			r.KeyFormat = c.S3.KeyPrefix + "/{{workflow.name}}/{{pod.name}}"
		}
		if s.Bucket == "" {
			return nil, fmt.Errorf("s3.bucket: is required")
		}
		r.Location.S3 = &s
	case c.Artifactory != nil:
		a := c.Artifactory.ArtifactoryArtifact
		a.URL = cmp.Or(c.Artifactory.RepoURL, a.URL)
		r.KeyFormat, r.Location.Artifactory = c.Artifactory.KeyFormat, &a
		if a.URL == "" {
			return nil, fmt.Errorf("artifactory.repoURL: is required")
		}
	case c.Volume != nil:
		v := c.Volume.VolumeArtifact
		r.KeyFormat, r.Location.Volume = c.Volume.KeyFormat, &v
		if (v.ClaimName == "") == (v.HostPath == "") {
			return nil, fmt.Errorf("volume: needs one of claimName and hostPath")
		}
	case c.GCS != nil:
		r.KeyFormat, r.Location.GCS = c.GCS.KeyFormat, &c.GCS.GCSArtifact
		if c.GCS.Bucket == "" {
			return nil, fmt.Errorf("gcs.bucket: is required")
		}
	case c.Azure != nil:
		r.KeyFormat, r.Location.Azure = c.Azure.BlobNameFormat, &c.Azure.AzureArtifact
		if c.Azure.Container == "" || c.Azure.Endpoint == "" {
			return nil, fmt.Errorf("azure: needs endpoint and container")
		}
	case c.OSS != nil:
		r.KeyFormat, r.Location.OSS = c.OSS.KeyFormat, &c.OSS.OSSArtifact
		if c.OSS.Bucket == "" || c.OSS.Endpoint == "" {
			return nil, fmt.Errorf("oss: needs endpoint and bucket")
		}
	case c.HDFS != nil:
		r.KeyFormat, r.Location.HDFS = c.HDFS.PathFormat, &c.HDFS.HDFSArtifact
		if len(c.HDFS.Addresses) == 0 {
			return nil, fmt.Errorf("hdfs.addresses: is required")
		}
	default:
		return nil, fmt.Errorf("names no store that is supported: s3, gcs, azure, oss, hdfs, artifactory, volume")
	}
	return r, nil
}

// FindRepository returns a workflow's artifact repository: the one that its spec refers to, or the
// default of the first namespace that has a ConfigMap of repositories. If no repository is found,
// it returns nil, with an error only if the spec refers to one. get returns nil if the ConfigMap
// does not exist.
func FindRepository(ref *wf.ArtifactRepositoryRef, namespaces []string, get func(namespace, name string) *corev1.ConfigMap) (*Repository, *wf.ArtifactRepositoryRefStatus, error) {
	if ref == nil {
		ref = &wf.ArtifactRepositoryRef{}
	}
	name := cmp.Or(ref.ConfigMap, wf.RepositoriesConfigMap)
	for _, namespace := range namespaces {
		m := get(namespace, name)
		if m == nil {
			continue
		}
		key := cmp.Or(ref.Key, m.Annotations[wf.AnnotationDefaultRepository])
		text, found := m.Data[key]
		switch {
		case !found && key == "" && ref.ConfigMap == "":
			continue
		case !found && key == "":
			return nil, nil, fmt.Errorf("artifactRepositoryRef: ConfigMap %s/%s has no annotation %s, and no key is given", namespace, name, wf.AnnotationDefaultRepository)
		case !found:
			return nil, nil, fmt.Errorf("artifactRepositoryRef: ConfigMap %s/%s has no key '%s'", namespace, name, key)
		}
		r, err := ParseRepository(text)
		if err != nil {
			return nil, nil, fmt.Errorf("artifact repository %s/%s, key '%s': %w", namespace, name, key, err)
		}
		status := &wf.ArtifactRepositoryRefStatus{
			ArtifactRepositoryRef: wf.ArtifactRepositoryRef{ConfigMap: name, Key: key}, Namespace: namespace, Default: ref.Key == "" && ref.ConfigMap == "",
			ArtifactRepository: &r.Location,
		}
		return r, status, nil
	}
	if ref.ConfigMap != "" || ref.Key != "" {
		return nil, nil, fmt.Errorf("artifactRepositoryRef: ConfigMap '%s' not found in %v", name, namespaces)
	}
	return nil, nil, nil
}

// Address returns where an artifact is, for people. A location that only has a key is in the
// repository, which may be nil.
func Address(l *wf.ArtifactLocation, repository *wf.ArtifactLocation) string {
	key, whole := keyed(l)
	if !whole {
		if repository == nil {
			return key
		}
		complete, _, err := withKey(repository, key)
		if err != nil {
			return key
		}
		l = &complete
	}
	switch {
	case l.S3 != nil:
		return fmt.Sprintf("s3://%s/%s", l.S3.Bucket, l.S3.Key)
	case l.GCS != nil:
		return fmt.Sprintf("gs://%s/%s", l.GCS.Bucket, l.GCS.Key)
	case l.Azure != nil:
		return fmt.Sprintf("%s/%s/%s", strings.TrimSuffix(l.Azure.Endpoint, "/"), l.Azure.Container, l.Azure.Blob)
	case l.OSS != nil:
		return fmt.Sprintf("oss://%s/%s", l.OSS.Bucket, l.OSS.Key)
	case l.HDFS != nil:
		return fmt.Sprintf("hdfs://%s%s", strings.Join(l.HDFS.Addresses, ","), l.HDFS.Path)
	case l.Volume != nil && l.Volume.ClaimName != "":
		return fmt.Sprintf("claim %s, %s", l.Volume.ClaimName, volumeKey(l.Volume))
	case l.Volume != nil:
		return path.Join(l.Volume.HostPath, volumeKey(l.Volume)) + " of a node"
	case l.HTTP != nil:
		return withoutQuery(l.HTTP.URL)
	case l.Artifactory != nil:
		return withoutQuery(l.Artifactory.URL)
	}
	return kinds(l)
}

// withoutQuery returns a URL without its query and user, which may be secret.
func withoutQuery(address string) string {
	short, _, _ := strings.Cut(address, "?")
	scheme, rest, found := strings.Cut(short, "://")
	if !found {
		return short
	}
	host, file, _ := strings.Cut(rest, "/")
	return scheme + "://" + host[strings.LastIndex(host, "@")+1:] + "/" + file
}

// Logs returns the nodes of a workflow whose logs are kept as artifacts, with their addresses, in
// the order of the nodes' names.
func Logs(w *wf.Workflow, nodes wf.Nodes) []string {
	var repository *wf.ArtifactLocation
	if ref := w.Status.ArtifactRepositoryRef; ref != nil {
		repository = ref.ArtifactRepository
	}
	var found []string
	for _, n := range nodes {
		if n.Outputs == nil || !n.Type.HasPod() {
			continue
		}
		for i := range n.Outputs.Artifacts {
			if a := &n.Outputs.Artifacts[i]; strings.HasSuffix(a.Name, logsSuffix) && !a.Deleted {
				found = append(found, n.Name+": "+Address(&a.ArtifactLocation, repository))
			}
		}
	}
	slices.Sort(found)
	return found
}
