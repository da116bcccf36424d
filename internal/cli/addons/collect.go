package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/application/addon"
	fetch "lockstep.dev/lockstep/internal/application/addons"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/addons"
)

// velaVersion is the version of KubeVela whose API is served. Addons may require one.
const velaVersion = "1.10.0"

// wanted is an addon that is to be enabled.
type wanted struct {
	addon      *addon.Addon
	rendered   *addon.Rendered
	parameters map[string]any
}

// localRegistry is the name of the registry of addons from folders, as in KubeVela.
const localRegistry = "local"

// collector finds an addon and those that it depends on.
type collector struct {
	*clients
	o          *options
	run        render.Run
	registries []addon.Registry
	enabled    map[string]addons.Enabled
	kubernetes string
	under      []string // names of the addons whose dependencies are being collected
	out        []*wanted
}

// collect returns the addon that what names, or that is in the folder, after the addons that it depends
// on and that are not enabled.
func (c *clients) collect(ctx context.Context, o *options, run render.Run, what string, parameters map[string]any) ([]*wanted, error) {
	x := &collector{clients: c, o: o, run: run}
	var err error
	if x.enabled, err = c.enabled(ctx); err != nil {
		return nil, err
	}
	if x.kubernetes, err = c.KubernetesVersion(); err != nil {
		return nil, err
	}
	if x.registries, err = c.chosen(ctx, o.registry); err != nil {
		return nil, err
	}
	if isFolder(what) {
		if o.version != "" {
			return nil, command.Usagef("--version: a folder has one version")
		}
		a, err := folder(what)
		if err != nil {
			return nil, err
		}
		err = x.add(ctx, a, localRegistry, parameters)
		return x.out, err
	}
	a, registry, err := x.find(ctx, what, o.version)
	if err != nil {
		return nil, err
	}
	err = x.add(ctx, a, registry, parameters)
	return x.out, err
}

// folder reads the addon in a folder.
func folder(dir string) (*addon.Addon, error) { return fetch.Folder(dir) }

// chosen returns the registries to look in: the one of a name or at an address, or all.
func (c *clients) chosen(ctx context.Context, registry string) ([]addon.Registry, error) {
	if strings.ContainsAny(registry, "/.") {
		r, err := fetch.At(registry, registry, "", "")
		if err != nil {
			return nil, command.Usagef("--registry: %w", err)
		}
		r.Name = ""
		return []addon.Registry{*r}, nil
	}
	known, err := c.Registries(ctx)
	if err != nil || registry == "" || registry == localRegistry {
		return known, err
	}
	i := slices.IndexFunc(known, func(r addon.Registry) bool { return r.Name == registry })
	if i < 0 {
		return nil, fmt.Errorf("there is no registry %s; 'lockstep addon registry list' shows those that there are", registry)
	}
	return known[i : i+1], nil
}

// find fetches an addon from the first registry that has it.
func (x *collector) find(ctx context.Context, name, version string) (*addon.Addon, string, error) {
	if len(x.registries) == 0 {
		return nil, "", fmt.Errorf("there is no registry to look for the addon %s in: add one with 'lockstep addon registry add', or give --registry", name)
	}
	var failed []error
	for i := range x.registries {
		r := x.registries[i]
		if err := x.WithPassword(ctx, &r); err != nil {
			return nil, "", err
		}
		a, err := x.fetcher.Addon(ctx, &r, name, version)
		if err == nil {
			return a, r.Name, nil
		}
		failed = append(failed, err)
		if !errors.Is(err, fetch.ErrNone) && len(x.registries) == 1 {
			break
		}
	}
	return nil, "", errors.Join(failed...)
}

// add adds an addon after those that it depends on.
func (x *collector) add(ctx context.Context, a *addon.Addon, registry string, parameters map[string]any) error {
	if slices.Contains(x.under, a.Name) {
		return fmt.Errorf("addons depend on each other in a circle: %s, %s", strings.Join(x.under, ", "), a.Name)
	}
	x.under = append(x.under, a.Name)
	if err := x.require(a); err != nil {
		return err
	}
	for _, d := range a.Dependencies {
		if err := x.depend(ctx, a, d); err != nil {
			return err
		}
	}
	x.under = x.under[:len(x.under)-1]
	rendered, err := a.Render(x.run, addon.Input{Parameters: parameters, Registry: registry})
	if err != nil {
		return err
	}
	if len(parameters) == 0 {
		parameters = nil
	}
	x.out = append(x.out, &wanted{a, rendered, parameters})
	return nil
}

// depend adds an addon that another one depends on, unless it is enabled.
func (x *collector) depend(ctx context.Context, of *addon.Addon, d addon.Dependency) error {
	there, version := false, ""
	if e, ok := x.enabled[d.Name]; ok {
		there, version = true, e.Version
	}
	for _, w := range x.out {
		if w.addon.Name == d.Name {
			there, version = true, w.addon.Version
		}
	}
	if there {
		if d.Version != "" && charts.Allows(spaced(d.Version), version) != nil {
			return fmt.Errorf("addon %s depends on version %s of %s, and %s is enabled: upgrade it first", of.Name, d.Version, d.Name, version)
		}
		return nil
	}
	a, registry, err := x.find(ctx, d.Name, spaced(d.Version))
	if err != nil {
		return fmt.Errorf("addon %s depends on %s: %w", of.Name, d.Name, err)
	}
	return x.add(ctx, a, registry, nil)
}

// require returns an error if an addon requires other versions.
func (x *collector) require(a *addon.Addon) error {
	if a.System == nil || x.o.newer {
		return nil
	}
	kubernetes, _, _ := strings.Cut(strings.TrimPrefix(x.kubernetes, "v"), "-")
	for _, r := range []struct{ name, wanted, version string }{
		{"Kubernetes", a.System.Kubernetes, kubernetes}, {"KubeVela", a.System.Vela, velaVersion},
	} {
		if r.wanted != "" && charts.Allows(spaced(r.wanted), r.version) != nil {
			return fmt.Errorf("addon %s requires %s %s, and this is %s (--skip-version-check does not look)", a, r.name, r.wanted, r.version)
		}
	}
	return nil
}

// spaced returns a range of versions without the v before numbers.
func spaced(versions string) string {
	out := []rune(versions)
	for i, c := range out {
		if c == 'v' && i+1 < len(out) && out[i+1] >= '0' && out[i+1] <= '9' {
			out[i] = ' '
		}
	}
	return strings.TrimSpace(string(out))
}
