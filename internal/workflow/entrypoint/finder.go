package entrypoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

const (
	// documentBytesMax bounds a manifest and a configuration of an image, in bytes.
	documentBytesMax = 4 << 20
	// lookTimeout bounds one look, with all of its requests.
	lookTimeout = 20 * time.Second
	// cacheMax bounds the number of cached answers, argumentsMax that of the words of one.
	cacheMax     = 1000
	argumentsMax = 1000
	// tagFresh is how long the answer for a tag counts. A digest's never changes.
	tagFresh = 10 * time.Minute
)

// The media types of manifests and lists of Docker; those of OCI are in ocispec.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Config configures a Finder.
type Config struct {
	// Requests judges the addresses of registries, which users choose. It is required.
	Requests *egress.Guard
	Clock    clock.PassiveClock // default: the real clock
}

// Finder asks registries. It is safe for concurrent use.
type Finder struct {
	client *http.Client
	clock  clock.PassiveClock

	mu    sync.Mutex
	known map[cacheKey]answer
}

type cacheKey struct {
	image string
	as    [sha256.Size]byte // hash of the credential
}

type answer struct {
	entrypoint pods.Entrypoint
	until      time.Time // zero: for ever
}

// New returns a Finder.
func New(cfg Config) (*Finder, error) {
	if cfg.Requests == nil {
		return nil, errors.New("entrypoint: requests must be guarded")
	}
	return &Finder{
		client: cfg.Requests.Client(), clock: cmp.Or[clock.PassiveClock](cfg.Clock, clock.RealClock{}), known: map[cacheKey]answer{},
	}, nil
}

// Error says why the command of an image is not known. It quotes nothing of a registry's answer.
type Error struct {
	why string
	// Again is true if a later look may succeed.
	Again bool
	err   error
}

func (e *Error) Error() string { return e.why }

func (e *Error) Unwrap() error { return e.err }

// Look returns the command that an image runs by default. secrets are the pull secrets. The error
// is an *Error.
func (f *Finder) Look(ctx context.Context, image string, secrets []*corev1.Secret) (pods.Entrypoint, error) {
	ref, err := reference(image)
	if err != nil {
		return pods.Entrypoint{}, &Error{why: err.Error()}
	}
	as := credential(secrets, ref.Registry, ref.Repository)
	data, err := json.Marshal(as)
	if err != nil {
		return pods.Entrypoint{}, &Error{why: "a pull secret cannot be used", err: err}
	}
	key := cacheKey{ref.String(), sha256.Sum256(data)}
	if e, found := f.cached(key); found {
		return e, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	e, err := f.ask(ctx, ref, as)
	if err != nil {
		return pods.Entrypoint{}, explained(ref, err)
	}
	f.keep(key, ref, e)
	return e, nil
}

func (f *Finder) cached(key cacheKey) (pods.Entrypoint, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, found := f.known[key]
	if found && !a.until.IsZero() && f.clock.Now().After(a.until) {
		delete(f.known, key)
		return pods.Entrypoint{}, false
	}
	return a.entrypoint, found
}

func (f *Finder) keep(key cacheKey, ref registry.Reference, e pods.Entrypoint) {
	a := answer{entrypoint: e}
	if ref.ValidateReferenceAsDigest() != nil {
		a.until = f.clock.Now().Add(tagFresh)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) >= cacheMax {
		f.known = map[cacheKey]answer{}
	}
	f.known[key] = a
}

// ask reads an image's manifest, for the first platform if it has several, and its configuration.
func (f *Finder) ask(ctx context.Context, ref registry.Reference, as auth.Credential) (out pods.Entrypoint, err error) {
	host := ref.Registry
	if host == hub {
		ref.Registry = hubHost
	}
	repository := &remote.Repository{
		Reference: ref, PlainHTTP: loopback(host), MaxMetadataBytes: documentBytesMax,
		ManifestMediaTypes: []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, dockerManifest, dockerList},
		Client: &auth.Client{Client: f.client, Cache: auth.NewCache(), Credential: func(_ context.Context, to string) (auth.Credential, error) {
			if to != ref.Host() {
				return auth.EmptyCredential, nil
			}
			return as, nil
		}},
	}
	at, err := repository.Resolve(ctx, ref.Reference)
	if err != nil {
		return out, err
	}
	var manifest ocispec.Manifest
	for range 2 {
		data, err := fetch(ctx, repository.Manifests(), at)
		if err != nil {
			return out, err
		}
		if at.MediaType != ocispec.MediaTypeImageIndex && at.MediaType != dockerList {
			if err := json.Unmarshal(data, &manifest); err != nil {
				return out, errAnswer
			}
			break
		}
		var list ocispec.Index
		if err := json.Unmarshal(data, &list); err != nil || len(list.Manifests) == 0 {
			return out, errAnswer
		}
		at = platform(list.Manifests)
	}
	if manifest.Config.Digest == "" {
		return out, errAnswer
	}
	data, err := fetch(ctx, repository.Blobs(), manifest.Config)
	if err != nil {
		return out, err
	}
	var image ocispec.Image
	if err := json.Unmarshal(data, &image); err != nil {
		return out, errAnswer
	}
	out = pods.Entrypoint{Command: image.Config.Entrypoint, Args: image.Config.Cmd}
	switch n := len(out.Command) + len(out.Args); {
	case n == 0:
		return out, errNothing
	case n > argumentsMax:
		return out, errAnswer
	}
	return out, nil
}

var (
	errAnswer  = errors.New("the registry's answer is not that of an image")
	errNothing = errors.New("the image has neither entrypoint nor cmd")
)

// platform returns the manifest for linux/amd64, else the first. Images run the same command on all
// platforms, and where the pod will run is not known yet.
func platform(list []ocispec.Descriptor) ocispec.Descriptor {
	at := slices.IndexFunc(list, func(d ocispec.Descriptor) bool {
		return d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == "amd64"
	})
	return list[max(at, 0)]
}

// fetch reads a document and checks its digest.
func fetch(ctx context.Context, from content.Fetcher, at ocispec.Descriptor) ([]byte, error) {
	if at.Size > documentBytesMax {
		return nil, errAnswer
	}
	body, err := from.Fetch(ctx, at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	return content.ReadAll(body, at)
}

// loopback reports whether a registry is on this machine, where container runtimes use HTTP.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// explained returns the error of a look, worded without the registry's text.
func explained(ref registry.Reference, err error) *Error {
	out := &Error{why: "the registry " + ref.Registry + " was asked in vain", Again: true, err: err}
	var (
		refused *egress.RefusedError
		status  *errcode.ErrorResponse
	)
	switch {
	case errors.As(err, &refused):
		out.why, out.Again = refused.Error(), false
	case errors.As(err, &status):
		out.why = fmt.Sprintf("the registry %s answered %d %s", ref.Registry, status.StatusCode, http.StatusText(status.StatusCode))
		out.Again = status.StatusCode >= http.StatusInternalServerError || status.StatusCode == http.StatusTooManyRequests
	case errors.Is(err, errdef.ErrNotFound):
		out.why, out.Again = "the registry "+ref.Registry+" does not have it", false
	case errors.Is(err, errAnswer), errors.Is(err, errNothing):
		out.why, out.Again = err.Error(), false
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		out.why, out.Again = "the registry "+ref.Registry+" wants credentials, and no pull secret has them", false
	case errors.Is(err, context.DeadlineExceeded):
		out.why = "the registry " + ref.Registry + " did not answer in time"
	}
	return out
}
