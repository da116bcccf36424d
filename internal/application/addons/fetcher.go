package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/application/addon"
	"lockstep.dev/lockstep/internal/application/charts"
)

// fetchTimeout bounds one download.
const fetchTimeout = 2 * time.Minute

// ErrNone is the error for a name that a registry does not have.
var ErrNone = errors.New("the registry has no addon")

// Fetcher fetches addons.
type Fetcher struct {
	// HTTP sends requests. Insecure does so without checking the server's certificate; it is used for
	// registries that say so.
	HTTP, Insecure charts.Doer
}

// Listed is an addon in a registry.
type Listed struct {
	Name, Version, Description string
}

// Addon fetches an addon. version is a version, a range of versions, or empty for the newest version
// that is not a pre-release. A Git repository and a folder have one version of each addon.
func (f *Fetcher) Addon(ctx context.Context, r *addon.Registry, name, version string) (*addon.Addon, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	a, err := f.addon(ctx, r, name, version)
	if err != nil {
		return nil, fmt.Errorf("registry %s: addon %s: %w", r, name, err)
	}
	if a.Name != name {
		return nil, fmt.Errorf("registry %s: the addon under the name %s calls itself %s", r, name, a.Name)
	}
	if version != "" && charts.Allows(version, a.Version) != nil {
		return nil, fmt.Errorf("registry %s: there is no version %s of the addon %s, but %s", r, version, name, a.Version)
	}
	return a, nil
}

func (f *Fetcher) addon(ctx context.Context, r *addon.Registry, name, version string) (*addon.Addon, error) {
	switch r.Type() {
	case addon.TypeHelm, addon.TypeOCI:
		fetcher := f.charts(r)
		archive, _, err := fetcher.Fetch(ctx, charts.Source{Chart: name, Repository: r.Helm.URL, Version: version, User: r.Helm.Username, Password: r.Helm.Password})
		if errors.Is(err, charts.ErrNotPublished) {
			return nil, ErrNone
		}
		if err != nil {
			return nil, err
		}
		files, err := addon.Unpack(archive)
		if err != nil {
			return nil, err
		}
		return addon.Open(files)
	case addon.TypeGit, addon.TypeFolder:
		t, err := openTree(ctx, r)
		if err != nil {
			return nil, err
		}
		defer t.close()
		return t.addon(name)
	}
	return nil, unreadable(r)
}

func unreadable(r *addon.Registry) error {
	return fmt.Errorf("registries of the type %s cannot be read; those of the types %s can", r.Type(), strings.Join([]string{addon.TypeHelm, addon.TypeOCI, addon.TypeGit}, ", "))
}

func (f *Fetcher) charts(r *addon.Registry) *charts.Fetcher {
	if r.Helm.InsecureSkipTLS {
		return &charts.Fetcher{HTTP: f.Insecure}
	}
	return &charts.Fetcher{HTTP: f.HTTP}
}

// ErrNoList is the error of OCI registries, which do not say what they have.
var ErrNoList = errors.New("an OCI registry does not list what it has")

// List returns the addons of a registry with their newest versions, sorted by name.
func (f *Fetcher) List(ctx context.Context, r *addon.Registry) ([]Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	out, err := f.list(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", r, err)
	}
	slices.SortFunc(out, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (f *Fetcher) list(ctx context.Context, r *addon.Registry) ([]Listed, error) {
	switch r.Type() {
	case addon.TypeHelm:
		newest, err := f.charts(r).Newest(ctx, charts.Source{Repository: r.Helm.URL, User: r.Helm.Username, Password: r.Helm.Password})
		var out []Listed
		for name, p := range newest {
			out = append(out, Listed{name, p.Version, p.Description})
		}
		return out, err
	case addon.TypeOCI:
		return nil, ErrNoList
	case addon.TypeGit, addon.TypeFolder:
		t, err := openTree(ctx, r)
		if err != nil {
			return nil, err
		}
		defer t.close()
		return t.list()
	}
	return nil, unreadable(r)
}
