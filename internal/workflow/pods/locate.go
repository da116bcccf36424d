package pods

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// keyed returns the key of an artifact's location; whole is true if the location names its store.
// If it does not, the key is a key in the artifact repository.
func keyed(l *wf.ArtifactLocation) (key string, whole bool) {
	switch {
	case l.S3 != nil:
		return l.S3.Key, l.S3.Bucket != ""
	case l.GCS != nil:
		return l.GCS.Key, l.GCS.Bucket != ""
	case l.Azure != nil:
		return l.Azure.Blob, l.Azure.Container != ""
	case l.OSS != nil:
		return l.OSS.Key, l.OSS.Bucket != ""
	case l.Volume != nil:
		return l.Volume.Key, l.Volume.ClaimName != "" || l.Volume.HostPath != ""
	case l.HDFS != nil:
		return l.HDFS.Path, len(l.HDFS.Addresses) > 0
	case l.HTTP != nil, l.Git != nil, l.Raw != nil, l.Artifactory != nil, l.Plugin != nil:
		return "", true
	}
	return "", false
}

// withKey returns a repository's location with a key. whole is complete; short, which the status
// keeps, omits the fields that come from the repository. key must not be empty.
func withKey(repository *wf.ArtifactLocation, key string) (whole, short wf.ArtifactLocation, err error) {
	whole = *repository.DeepCopy()
	whole.ArchiveLogs = nil
	switch {
	case whole.S3 != nil:
		whole.S3.Key, short.S3 = key, &wf.S3Artifact{Key: key}
	case whole.GCS != nil:
		whole.GCS.Key, short.GCS = key, &wf.GCSArtifact{Key: key}
	case whole.Azure != nil:
		whole.Azure.Blob, short.Azure = key, &wf.AzureArtifact{Blob: key}
	case whole.OSS != nil:
		whole.OSS.Key, short.OSS = key, &wf.OSSArtifact{Key: key}
	case whole.HDFS != nil:
		whole.HDFS.Path = path.Join("/", key)
		short.HDFS = &wf.HDFSArtifact{Path: whole.HDFS.Path}
	case whole.Volume != nil:
		whole.Volume.Key, short.Volume = key, &wf.VolumeArtifact{Key: key}
	case whole.HTTP != nil:
		whole.HTTP.URL = strings.TrimSuffix(whole.HTTP.URL, "/") + "/" + key
		short = whole
	case whole.Artifactory != nil:
		whole.Artifactory.URL = strings.TrimSuffix(whole.Artifactory.URL, "/") + "/" + key
		short = whole
	default:
		return whole, short, fmt.Errorf("the artifact repository is of a kind that is not supported: %s", kinds(repository))
	}
	return whole, short, nil
}

// kinds returns the names of the stores of a location.
func kinds(l *wf.ArtifactLocation) string {
	data, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err.Error()
	}
	delete(fields, "archiveLogs")
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(fields)), ", "), "none")
}

// repository returns the artifact repository of the template.
func (b *builder) repository() (*Repository, error) {
	repository := b.options.Repository
	if own := b.t.ArchiveLocation; own != nil {
		if key, whole := keyed(own); whole || key != "" {
			r := Repository{Location: *own.DeepCopy(), KeyFormat: key}
			if !whole {
				if repository == nil {
					return nil, fmt.Errorf("archiveLocation: %w", errNoRepository)
				}
				r.Location = repository.Location
			}
			if r.KeyFormat == "" && repository != nil {
				r.KeyFormat = repository.KeyFormat
			}
			return &r, nil
		}
	}
	if repository == nil {
		return nil, errNoRepository
	}
	return repository, nil
}

var errNoRepository = fmt.Errorf("it names no store, and there is no artifact repository: see artifactRepositoryRef")

// prefix returns the beginning of the keys of the pod's artifacts.
func (b *builder) prefix(r *Repository) (string, error) {
	format, err := template.Parse(cmp.Or(r.KeyFormat, "{{workflow.name}}/{{pod.name}}"))
	if err != nil {
		return "", fmt.Errorf("the key format of the artifact repository: %w", err)
	}
	created := b.workflow.CreationTimestamp.UTC()
	variables := template.Map{
		"workflow.name": b.workflow.Name, "workflow.namespace": b.workflow.Namespace, "workflow.uid": string(b.workflow.UID),
		"pod.name": b.create.PodName, "node.name": b.create.NodeName,
		"workflow.creationTimestamp.Y": created.Format("2006"), "workflow.creationTimestamp.m": created.Format("01"),
		"workflow.creationTimestamp.d": created.Format("02"), "workflow.creationTimestamp.H": created.Format("15"),
		"workflow.creationTimestamp.M": created.Format("04"), "workflow.creationTimestamp.S": created.Format("05"),
	}
	for _, p := range b.spec.Arguments.Parameters {
		if p.Value != nil {
			variables["workflow.parameters."+p.Name] = string(*p.Value)
		}
	}
	for key, value := range b.workflow.Labels {
		variables["workflow.labels."+key] = value
	}
	text, err := format.Resolve([]template.Scope{variables, template.Typed{template.Runner: b.options.Evaluate}}, "workflow.", "pod.", "node.")
	if err != nil {
		return "", fmt.Errorf("the key format of the artifact repository: %w", err)
	}
	return strings.Trim(text, "/"), nil
}

// input returns the complete location of an input artifact.
func (b *builder) input(a *wf.Artifact) (wf.ArtifactLocation, error) {
	location := *a.ArtifactLocation.DeepCopy()
	key, whole := keyed(&location)
	if !whole {
		if key == "" {
			return location, fmt.Errorf("it has no location")
		}
		r, err := b.repository()
		if err != nil {
			return location, err
		}
		if location, _, err = withKey(&r.Location, key); err != nil {
			return location, err
		}
	}
	if a.SubPath != "" {
		key, _ := keyed(&location)
		if key == "" {
			return location, fmt.Errorf("subPath: is not supported for %s", kinds(&location))
		}
		var err error
		if location, _, err = withKey(&location, path.Join(key, a.SubPath)); err != nil {
			return location, err
		}
	}
	return location, nil
}

// output returns the complete location of an output artifact, and the short form for the status.
// file is the artifact's file name, which ends the key if the location has none.
func (b *builder) output(a *wf.Artifact, file string) (whole, short wf.ArtifactLocation, err error) {
	key, complete := keyed(&a.ArtifactLocation)
	if complete && (key != "" || a.HTTP != nil || a.Artifactory != nil) {
		return a.ArtifactLocation, a.ArtifactLocation, nil
	}
	r, err := b.repository()
	if err != nil && !complete {
		return whole, short, err
	}
	store := a.ArtifactLocation
	if !complete {
		store = r.Location
	}
	if key == "" {
		if r == nil {
			r = &Repository{}
		}
		prefix, err := b.prefix(r)
		if err != nil {
			return whole, short, err
		}
		key = path.Join(prefix, file)
	}
	whole, short, err = withKey(&store, key)
	if complete || b.t.ArchiveLocation != nil { // the reader may have another repository
		short = whole
	}
	return whole, short, err
}

// carrier collects the mounts and volumes of a container that moves artifacts.
type carrier struct {
	mounts  []corev1.VolumeMount
	volumes []corev1.Volume
	secrets map[string]int // indexes in volumes, by name of the secret
	stores  map[string]int
}

func newCarrier() *carrier {
	return &carrier{secrets: map[string]int{}, stores: map[string]int{}}
}

// secret mounts one key of a secret and returns the path of its file.
func (c *carrier) secret(s *corev1.SecretKeySelector) string {
	if s == nil {
		return ""
	}
	i, found := c.secrets[s.Name]
	if !found {
		i = len(c.volumes)
		c.secrets[s.Name] = i
		volume := secretVolume(s.Name)
		c.volumes = append(c.volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: s.Name, Optional: s.Optional},
		}})
		c.mounts = append(c.mounts, corev1.VolumeMount{Name: volume, MountPath: path.Join(execapi.SecretDir, s.Name), ReadOnly: true})
	}
	items := &c.volumes[i].Secret.Items
	if !slices.ContainsFunc(*items, func(item corev1.KeyToPath) bool { return item.Key == s.Key }) {
		*items = append(*items, corev1.KeyToPath{Key: s.Key, Path: s.Key})
	}
	return path.Join(execapi.SecretDir, s.Name, s.Key)
}

// configMap mounts one key of a ConfigMap and returns the path of its file.
func (c *carrier) configMap(s *corev1.ConfigMapKeySelector) string {
	volume := "lockstep-config-" + wf.Hash(s.Name+"/"+s.Key)
	dir := path.Join(execapi.ConfigDir, wf.Hash(s.Name+"/"+s.Key))
	if !slices.ContainsFunc(c.volumes, func(v corev1.Volume) bool { return v.Name == volume }) {
		c.volumes = append(c.volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: s.LocalObjectReference, Optional: s.Optional, Items: []corev1.KeyToPath{{Key: s.Key, Path: s.Key}}},
		}})
		c.mounts = append(c.mounts, corev1.VolumeMount{Name: volume, MountPath: dir, ReadOnly: true})
	}
	return path.Join(dir, s.Key)
}

// headers returns the headers of an HTTP request. It replaces secret values by the paths of their
// files.
func (c *carrier) headers(list []wf.HTTPHeader) []execapi.Header {
	var out []execapi.Header
	for _, h := range list {
		header := execapi.Header{Name: h.Name, Value: h.Value}
		if h.ValueFrom != nil {
			header.File = c.secret(h.ValueFrom.SecretKeyRef)
		}
		out = append(out, header)
	}
	return out
}

// secretVolume returns the name of the volume with a secret. It differs from the names of users'
// volumes, and is a valid name: without dots, and of at most 63 bytes.
func secretVolume(secret string) string {
	name := strings.ReplaceAll(secret, ".", "-")
	if len(name) > 47 || name != secret {
		name = name[:min(len(name), 36)] + "-" + wf.Hash(secret)
	}
	return "lockstep-secret-" + name
}

// store mounts the volume that holds the artifact and returns its mount path.
func (c *carrier) store(v *wf.VolumeArtifact) string {
	source, name := volumeSource(v)
	i, found := c.stores[name]
	if !found {
		i = len(c.stores)
		c.stores[name] = i
		c.volumes = append(c.volumes, corev1.Volume{Name: name, VolumeSource: source})
		c.mounts = append(c.mounts, corev1.VolumeMount{Name: name, MountPath: fmt.Sprintf("%s/%d", execapi.RepositoryDir, i)})
	}
	return fmt.Sprintf("%s/%d", execapi.RepositoryDir, i)
}

// volumeKey returns the artifact's key as a path below the volume's root. The path cannot lead out
// of the volume.
func volumeKey(v *wf.VolumeArtifact) string { return strings.TrimPrefix(path.Clean("/"+v.Key), "/") }

func volumeSource(v *wf.VolumeArtifact) (corev1.VolumeSource, string) {
	if v.ClaimName != "" {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.ClaimName}},
			"artifacts-" + wf.Hash("claim "+v.ClaimName)
	}
	directory := corev1.HostPathDirectoryOrCreate
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.HostPath, Type: &directory}}, "artifacts-" + wf.Hash("host "+v.HostPath)
}

// location converts a location to the form for the program that moves the artifact.
func (c *carrier) location(l *wf.ArtifactLocation) (execapi.Location, error) {
	var out execapi.Location
	switch {
	case l.S3 != nil:
		s := l.S3
		if !slices.Contains([]string{"", wf.S3StylePath, wf.S3StyleVirtualHosted}, s.AddressingStyle) {
			return out, fmt.Errorf("s3.addressingStyle: '%s' is neither %s nor %s", s.AddressingStyle, wf.S3StylePath, wf.S3StyleVirtualHosted)
		}
		encryption, err := c.encryption(s.EncryptionOptions)
		if err != nil {
			return out, fmt.Errorf("s3.encryptionOptions.%w", err)
		}
		out.S3 = &execapi.S3{
			Endpoint: cmp.Or(s.Endpoint, "s3.amazonaws.com"), Bucket: s.Bucket, Key: s.Key, Region: s.Region, Insecure: ptr.Deref(s.Insecure, false),
			AccessKey: c.secret(s.AccessKeySecret), SecretKey: c.secret(s.SecretKeySecret), SessionToken: c.secret(s.SessionTokenSecret),
			CA: c.secret(s.CASecret), RoleARN: s.RoleARN, FromMachine: s.UseSDKCreds,
			BucketInHost: s.AddressingStyle == wf.S3StyleVirtualHosted, BucketInPath: s.AddressingStyle == wf.S3StylePath,
			Encryption: encryption,
		}
		if b := s.CreateBucketIfNotPresent; b != nil {
			out.S3.CreateBucket, out.S3.LockObjects = true, b.ObjectLocking
		}
	case l.HTTP != nil:
		out.HTTP = &execapi.HTTP{URL: l.HTTP.URL, Headers: c.headers(l.HTTP.Headers)}
		if err := c.auth(l.HTTP.Auth, out.HTTP); err != nil {
			return out, fmt.Errorf("http.auth.%w", err)
		}
	case l.Artifactory != nil:
		out.HTTP = &execapi.HTTP{URL: l.Artifactory.URL, Username: c.secret(l.Artifactory.UsernameSecret), Password: c.secret(l.Artifactory.PasswordSecret)}
	case l.Git != nil:
		g := l.Git
		out.Git = &execapi.Git{
			Repo: g.Repo, Revision: g.Revision, Branch: g.Branch, Fetch: g.Fetch, Username: c.secret(g.UsernameSecret), Password: c.secret(g.PasswordSecret),
			SSHKey: c.secret(g.SSHPrivateKeySecret), NoHostKey: g.InsecureIgnoreHostKey, NoTLS: g.InsecureSkipTLS,
			Submodules: !g.DisableSubmodules, Single: g.SingleBranch,
		}
		if g.Depth != nil {
			out.Git.Depth = int(*g.Depth)
		}
	case l.GCS != nil:
		out.GCS = &execapi.GCS{Bucket: l.GCS.Bucket, Key: l.GCS.Key, Account: c.secret(l.GCS.ServiceAccountKeySecret)}
	case l.Azure != nil:
		a := l.Azure
		if a.Endpoint == "" {
			return out, fmt.Errorf("azure.endpoint: is required")
		}
		out.Azure = &execapi.Azure{Endpoint: a.Endpoint, Container: a.Container, Blob: a.Blob, FromMachine: a.UseSDKCreds}
		if !a.UseSDKCreds {
			out.Azure.AccountKey = c.secret(a.AccountKeySecret)
		}
	case l.OSS != nil:
		o := l.OSS
		switch {
		case o.Endpoint == "":
			return out, fmt.Errorf("oss.endpoint: is required")
		case o.LifecycleRule != nil && *o.LifecycleRule != (wf.OSSLifecycleRule{}):
			return out, fmt.Errorf("oss.lifecycleRule: is not supported: rules belong to the bucket, set them there")
		}
		out.OSS = &execapi.OSS{
			Endpoint: o.Endpoint, Bucket: o.Bucket, Key: o.Key, SecurityToken: o.SecurityToken, FromMachine: o.UseSDKCreds,
			CreateBucket: o.CreateBucketIfNotPresent,
		}
		if !o.UseSDKCreds {
			out.OSS.AccessKey, out.OSS.SecretKey = c.secret(o.AccessKeySecret), c.secret(o.SecretKeySecret)
		}
	case l.HDFS != nil:
		h := l.HDFS
		out.HDFS = &execapi.HDFS{Addresses: h.Addresses, User: h.HDFSUser, Path: h.Path, Force: h.Force, Protection: strings.ToLower(h.DataTransferProtection)}
		var err error
		if out.HDFS.Kerberos, err = c.kerberos(h); err != nil {
			return out, fmt.Errorf("hdfs.%w", err)
		}
	case l.Raw != nil:
		out.Raw = &execapi.Raw{Data: l.Raw.Data}
	case l.Volume != nil:
		out.Volume = &execapi.File{Root: c.store(l.Volume), Path: volumeKey(l.Volume)}
	default:
		return out, fmt.Errorf("a location of kind %s is not supported", kinds(l))
	}
	return out, nil
}

// kerberos converts the credentials for HDFS; nil: the user's name is all that the name node asks.
func (c *carrier) kerberos(h *wf.HDFSArtifact) (*execapi.Kerberos, error) {
	if !path.IsAbs(h.Path) {
		return nil, fmt.Errorf("path: '%s' is not absolute", h.Path)
	}
	switch strings.ToLower(h.DataTransferProtection) {
	case "", "authentication", "privacy":
	case "integrity": // the library loses bytes where a message ends within a value
		return nil, fmt.Errorf("dataTransferProtection: integrity is not supported, use authentication or privacy")
	default:
		return nil, fmt.Errorf("dataTransferProtection: '%s' is neither authentication nor privacy", h.DataTransferProtection)
	}
	cache, keytab := h.KrbCCacheSecret != nil, h.KrbKeytabSecret != nil
	switch {
	case cache && keytab:
		return nil, fmt.Errorf("krbKeytabSecret: cannot be used together with krbCCacheSecret")
	case !cache && !keytab && h.HDFSUser == "":
		return nil, fmt.Errorf("hdfsUser: is required without krbCCacheSecret and krbKeytabSecret")
	case !cache && !keytab:
		return nil, nil
	case h.KrbConfigConfigMap == nil:
		return nil, fmt.Errorf("krbConfigConfigMap: is required with Kerberos")
	case h.KrbServicePrincipalName == "":
		return nil, fmt.Errorf("krbServicePrincipalName: is required with Kerberos")
	case keytab && (h.KrbUsername == "" || h.KrbRealm == ""):
		return nil, fmt.Errorf("krbUsername: is required with krbKeytabSecret, as krbRealm is")
	}
	return &execapi.Kerberos{
		Cache: c.secret(h.KrbCCacheSecret), Keytab: c.secret(h.KrbKeytabSecret), Config: c.configMap(h.KrbConfigConfigMap),
		User: h.KrbUsername, Realm: h.KrbRealm, Service: h.KrbServicePrincipalName,
	}, nil
}

// encryption converts the encryption options of S3; nil: objects are not encrypted.
func (c *carrier) encryption(o *wf.S3EncryptionOptions) (*execapi.S3Encryption, error) {
	if o == nil || !o.EnableEncryption {
		return nil, nil
	}
	out := &execapi.S3Encryption{KMSKey: o.KmsKeyID, CustomerKey: c.secret(o.ServerSideCustomerKeySecret)}
	switch {
	case out.KMSKey != "" && out.CustomerKey != "":
		return nil, fmt.Errorf("kmsKeyId: cannot be used together with serverSideCustomerKeySecret")
	case o.KmsEncryptionContext == "":
	case out.KMSKey == "":
		return nil, fmt.Errorf("kmsEncryptionContext: needs kmsKeyId")
	default:
		if err := json.Unmarshal([]byte(o.KmsEncryptionContext), &out.KMSContext); err != nil {
			return nil, fmt.Errorf("kmsEncryptionContext: is not a JSON object of strings: %w", err)
		}
	}
	return out, nil
}

// auth adds the credentials of an HTTP artifact to its location.
func (c *carrier) auth(a *wf.HTTPAuth, to *execapi.HTTP) error {
	if a == nil {
		return nil
	}
	to.Username, to.Password = c.secret(a.BasicAuth.UsernameSecret), c.secret(a.BasicAuth.PasswordSecret)
	to.ClientCert, to.ClientKey = c.secret(a.ClientCert.ClientCertSecret), c.secret(a.ClientCert.ClientKeySecret)
	if (to.ClientCert == "") != (to.ClientKey == "") {
		return fmt.Errorf("clientCert: needs both clientCertSecret and clientKeySecret")
	}
	o := &a.OAuth2
	given := o.ClientIDSecret != nil || o.ClientSecretSecret != nil || o.TokenURLSecret != nil
	switch {
	case !given && len(o.Scopes)+len(o.EndpointParams) == 0:
		return nil
	case o.ClientIDSecret == nil || o.ClientSecretSecret == nil || o.TokenURLSecret == nil:
		return fmt.Errorf("oauth2: needs clientIDSecret, clientSecretSecret and tokenURLSecret")
	case to.Username != "":
		return fmt.Errorf("oauth2: cannot be used together with basicAuth")
	}
	to.OAuth2 = &execapi.OAuth2{
		ClientID: c.secret(o.ClientIDSecret), ClientSecret: c.secret(o.ClientSecretSecret), TokenURL: c.secret(o.TokenURLSecret),
		Scopes: o.Scopes, Parameters: map[string][]string{},
	}
	for _, p := range o.EndpointParams {
		to.OAuth2.Parameters[p.Key] = append(to.OAuth2.Parameters[p.Key], p.Value)
	}
	return nil
}
