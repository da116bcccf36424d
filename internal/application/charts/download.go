package charts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/egress"
)

// Fetcher fetches packed charts, and archives that are published as charts are. It caches nothing. It
// is safe for concurrent use.
type Fetcher struct {
	// HTTP sends the requests.
	HTTP Doer
	// parsing is held while a fetched text is parsed, which takes many times its size in memory,
	// but not while the text is fetched.
	parsing sync.Mutex
}

// Fetch fetches an archive from the place that its source names. version is the version, or the range
// of versions, that its content must have, or empty.
func (f *Fetcher) Fetch(ctx context.Context, from Source) (archive []byte, version string, _ error) {
	if err := from.check(); err != nil {
		return nil, "", err
	}
	if address, ok := strings.CutPrefix(from.Chart, "oci://"); ok {
		archive, err := f.pull(ctx, address, from)
		return archive, "", err
	}
	if address, ok := strings.CutPrefix(from.Repository, "oci://"); ok {
		archive, err := f.pull(ctx, strings.TrimSuffix(address, "/")+"/"+from.Chart, from)
		return archive, "", err
	}
	if from.Repository == "" {
		archive, err := f.get(ctx, from.Chart, &from, chart.ArchiveMax)
		return archive, from.Version, err
	}
	return f.fromRepository(ctx, from)
}

// download fetches a chart and reads it.
func (s *Store) download(ctx context.Context, from Source) (*chart.Chart, error) {
	data, version, err := s.fetcher.Fetch(ctx, from)
	if err != nil {
		return nil, err
	}
	c, err := s.cfg.Open(data)
	if err == nil && version != "" {
		err = Allows(version, c.Version)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Published is an index's entry for one version of a chart.
type Published struct {
	Version     string   `json:"version"`
	Description string   `json:"description"`
	URLs        []string `json:"urls"`
	Digest      string   `json:"digest"`
}

func (f *Fetcher) fromRepository(ctx context.Context, from Source) (archive []byte, version string, _ error) {
	repository, err := url.Parse(strings.TrimSuffix(from.Repository, "/") + "/")
	if err != nil {
		return nil, "", err
	}
	versions, err := f.versions(ctx, repository.JoinPath("index.yaml").String(), &from)
	if err != nil {
		return nil, "", err
	}
	if len(versions) == 0 {
		return nil, "", fmt.Errorf("%w %s", ErrNotPublished, from.Chart)
	}
	at, err := choose(from.Version, len(versions), func(i int) string { return versions[i].Version })
	if err != nil {
		return nil, "", err
	}
	v := versions[at]
	if len(v.URLs) == 0 {
		return nil, "", errors.New("the index has no address for the version")
	}
	address, err := repository.Parse(v.URLs[0])
	if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.User != nil {
		return nil, "", errors.New("the index's address for the version is not one that begins with https:// or http://")
	}
	data, err := f.get(ctx, address.String(), &from, chart.ArchiveMax)
	if err == nil {
		err = checkDigest(data, v.Digest)
	}
	return data, v.Version, err
}

// ErrNotPublished is the error for a name that an index does not have.
var ErrNotPublished = errors.New("the repository has no chart")

// versions returns the chart's versions in the index at address.
func (f *Fetcher) versions(ctx context.Context, address string, from *Source) ([]Published, error) {
	resp, err := f.ask(ctx, address, from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := good(resp); err != nil {
		return nil, err
	}
	return readIndex(resp.Body, from.Chart, &f.parsing)
}

// checkDigest returns an error if an archive does not have the digest that was announced, if any.
func checkDigest(archive []byte, digest string) error {
	sum := sha256.Sum256(archive)
	if got := hex.EncodeToString(sum[:]); digest != "" && got != strings.TrimPrefix(digest, "sha256:") {
		return fmt.Errorf("the chart's digest is %s, and not the one that was announced", got)
	}
	return nil
}

// Allows returns an error unless a version is wanted: a version, a range, or latest.
func Allows(wanted, version string) error {
	_, err := choose(wanted, 1, func(int) string { return version })
	return err
}

// exact reports whether a version is a single version and not a range.
func exact(version string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	return err == nil
}

// choose returns the index of the newest of n versions that wanted allows: a version, a range, or
// latest.
func choose(wanted string, n int, version func(int) string) (int, error) {
	if wanted == "" || wanted == "latest" {
		wanted = "*"
	}
	for i := range n {
		if version(i) == wanted || strings.TrimPrefix(version(i), "v") == strings.TrimPrefix(wanted, "v") {
			return i, nil
		}
	}
	constraint, err := semver.NewConstraint(wanted)
	if err != nil {
		return 0, fmt.Errorf("there is no version %s", wanted)
	}
	best, at := (*semver.Version)(nil), -1
	for i := range n {
		v, err := semver.NewVersion(version(i))
		if err == nil && constraint.Check(v) && (best == nil || v.GreaterThan(best)) {
			best, at = v, i
		}
	}
	if at < 0 {
		return 0, fmt.Errorf("there is no version %s", wanted)
	}
	return at, nil
}

// ask sends a request to a URL. The password is sent to the source's own host only, and not to
// other hosts after a redirect.
func (f *Fetcher) ask(ctx context.Context, address string, from *Source) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("the chart's address cannot be requested")
	}
	home := from.Repository
	if home == "" {
		home = from.Chart
	}
	if u, err := url.Parse(home); err == nil && from.User != "" && u.Host == req.URL.Host && u.Scheme == req.URL.Scheme {
		req.SetBasicAuth(from.User, from.Password)
	}
	return f.HTTP.Do(req)
}

// get returns the body at a URL.
func (f *Fetcher) get(ctx context.Context, address string, from *Source, limit int64) ([]byte, error) {
	resp, err := f.ask(ctx, address, from)
	if err != nil {
		return nil, err
	}
	return body(resp, limit)
}

// good returns an error for responses other than 200. The error contains nothing of the response's
// body.
func good(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d %s", resp.Request.URL.Host, resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}

// body returns the body of a response with status 200.
func body(resp *http.Response, limit int64) ([]byte, error) {
	if err := good(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return egress.ReadAll(resp, limit)
}

// Media types of charts in registries.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	archiveType  = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// Bounds on a registry's responses, in bytes.
const (
	manifestMax = 256 << 10
	tagsMax     = 4 << 20
	tokenMax    = 64 << 10
)

// registry is one repository of an OCI registry.
type registry struct {
	fetcher  *Fetcher
	host     string
	name     string
	from     *Source
	token    string // the value of Authorization
	insecure bool   // HTTP is used for a registry on this machine
}

// pull fetches an archive from an OCI registry. address is HOST/NAME, followed by :TAG or @DIGEST
// unless version decides.
func (f *Fetcher) pull(ctx context.Context, address string, from Source) ([]byte, error) {
	host, name, ok := strings.Cut(address, "/")
	if !ok || name == "" {
		return nil, fmt.Errorf("oci://%s names no chart", address)
	}
	r := &registry{fetcher: f, host: host, name: name, from: &from, insecure: onThisMachine(host)}
	version := from.Version
	reference := ""
	if n, digest, ok := strings.Cut(r.name, "@"); ok {
		r.name, reference = n, digest
	} else if at := strings.LastIndex(r.name, ":"); at >= 0 {
		r.name, reference = r.name[:at], r.name[at+1:]
	} else if exact(version) {
		reference = tag(version)
	} else {
		var err error
		if reference, err = r.newest(ctx, version); err != nil {
			return nil, err
		}
	}
	data, err := r.get(ctx, "manifests/"+reference, manifestType, manifestMax)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(reference, "sha256:") {
		if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != reference {
			return nil, errors.New("the registry answers with another manifest than was asked for")
		}
	}
	var manifest struct {
		Layers []struct {
			MediaType string `json:"mediaType"`
			Digest    string `json:"digest"`
			Size      int64  `json:"size"`
		} `json:"layers"`
	}
	if json.Unmarshal(data, &manifest) != nil {
		return nil, errors.New("the registry's manifest cannot be read")
	}
	for _, l := range manifest.Layers {
		if l.MediaType != archiveType {
			continue
		}
		if !isDigest(l.Digest) {
			return nil, errors.New("the registry's manifest names a digest that is none")
		}
		if l.Size > chart.ArchiveMax {
			return nil, fmt.Errorf("the chart has %d bytes; the limit is %d", l.Size, chart.ArchiveMax)
		}
		if data, err = r.get(ctx, "blobs/"+l.Digest, "*/*", chart.ArchiveMax); err != nil {
			return nil, err
		}
		return data, checkDigest(data, l.Digest)
	}
	return nil, fmt.Errorf("oci://%s is not a chart", address)
}

// isDigest reports whether text is a digest sha256:HEX, the only kind in use.
func isDigest(text string) bool {
	sum, ok := strings.CutPrefix(text, "sha256:")
	return ok && len(sum) == hex.EncodedLen(sha256.Size) && strings.Trim(sum, "0123456789abcdef") == ""
}

// tag returns the tag of a version. Tags cannot contain plus signs.
func tag(version string) string { return strings.ReplaceAll(version, "+", "_") }

func onThisMachine(host string) bool {
	name, _, _ := strings.Cut(host, ":")
	return name == "localhost" || name == "127.0.0.1"
}

// newest returns the tag of the newest version that wanted allows.
func (r *registry) newest(ctx context.Context, wanted string) (string, error) {
	data, err := r.get(ctx, "tags/list", "application/json", tagsMax)
	if err != nil {
		return "", err
	}
	var list struct {
		Tags []string `json:"tags"`
	}
	if json.Unmarshal(data, &list) != nil {
		return "", errors.New("the registry's list of tags cannot be read")
	}
	list.Tags = slices.DeleteFunc(list.Tags, func(t string) bool { return strings.HasPrefix(t, "sha256") })
	at, err := choose(wanted, len(list.Tags), func(i int) string { return strings.ReplaceAll(list.Tags[i], "_", "+") })
	if err != nil {
		return "", err
	}
	return list.Tags[at], nil
}

// get reads from the registry, and logs in if the registry asks for it.
func (r *registry) get(ctx context.Context, what, accept string, limit int64) ([]byte, error) {
	scheme := "https"
	if r.insecure {
		scheme = "http"
	}
	for try := 0; ; try++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+r.host+"/v2/"+r.name+"/"+what, nil)
		if err != nil {
			return nil, errors.New("the chart's address cannot be requested")
		}
		req.Header.Set("Accept", accept)
		if r.token != "" {
			req.Header.Set("Authorization", r.token)
		}
		resp, err := r.fetcher.HTTP.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusUnauthorized || try > 0 {
			return body(resp, limit)
		}
		challenge := resp.Header.Get("Www-Authenticate")
		resp.Body.Close()
		if err := r.login(ctx, challenge); err != nil {
			return nil, err
		}
	}
}

// login answers a registry's challenge.
func (r *registry) login(ctx context.Context, challenge string) error {
	kind, rest, _ := strings.Cut(challenge, " ")
	given := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		if k, v, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			given[strings.ToLower(k)] = strings.Trim(v, `"`)
		}
	}
	if strings.EqualFold(kind, "basic") {
		if r.from.User == "" {
			return fmt.Errorf("%s wants a user and a password: use chart.auth.secretRef", r.host)
		}
		req := &http.Request{Header: http.Header{}}
		req.SetBasicAuth(r.from.User, r.from.Password)
		r.token = req.Header.Get("Authorization")
		return nil
	}
	realm, err := url.Parse(given["realm"])
	if err != nil || !strings.EqualFold(kind, "bearer") || realm.Host == "" || realm.Scheme != "https" && !r.insecure {
		return fmt.Errorf("%s wants to know who asks in a way that is not supported", r.host)
	}
	query := realm.Query()
	query.Set("service", given["service"])
	query.Set("scope", "repository:"+r.name+":pull")
	realm.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	if err != nil {
		return fmt.Errorf("%s names a server of tokens that cannot be asked", r.host)
	}
	if r.from.User != "" {
		req.SetBasicAuth(r.from.User, r.from.Password)
	}
	resp, err := r.fetcher.HTTP.Do(req)
	if err != nil {
		return err
	}
	data, err := body(resp, tokenMax)
	if err != nil {
		return err
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(data, &answer) != nil {
		return fmt.Errorf("the answer of the server of tokens of %s cannot be read", r.host)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	r.token = "Bearer " + answer.Token
	return nil
}
