// Package addons holds the verbs of addons, which are below 'lockstep addon'.
package addons

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/addon"
	fetch "lockstep.dev/lockstep/internal/application/addons"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit/addons"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// New returns the command 'addon'.
func New(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "addon",
		Aliases: []string{"addons"},
		Short:   "Addons: packages of definitions, and of what these need in a cluster",
	}, newEnable(s), newUpgrade(s), newDisable(s), newList(s), newStatus(s), newRegistry(s))
}

// clients are the clients of a verb.
type clients struct {
	*addons.Client
	apps *applications.Client
	// fetcher fetches addons.
	fetcher *fetch.Fetcher
}

// requestTimeout bounds one request to a registry.
const requestTimeout = time.Minute

func newClients(cfg *rest.Config, dryRun kubeclient.DryRun) (*clients, error) {
	client, err := addons.New(cfg, dryRun)
	if err != nil {
		return nil, err
	}
	apps, err := applications.New(cfg, dryRun)
	if err != nil {
		return nil, err
	}
	insecure := http.DefaultTransport.(*http.Transport).Clone()
	insecure.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the registry's administrator asks for it
	return &clients{client, apps, &fetch.Fetcher{
		HTTP: &http.Client{Timeout: requestTimeout}, Insecure: &http.Client{Timeout: requestTimeout, Transport: insecure},
	}}, nil
}

// enabled returns the addons that are enabled, by their names.
func (c *clients) enabled(ctx context.Context) (map[string]addons.Enabled, error) {
	apps, err := c.apps.List(ctx, oam.SystemNamespace, oam.AddonLabel)
	if err != nil {
		return nil, err
	}
	out := map[string]addons.Enabled{}
	for i := range apps {
		e := addons.EnabledOf(&apps[i])
		if apps[i].Name == addon.AppName(e.Name) || out[e.Name].Application == nil {
			out[e.Name] = e
		}
	}
	return out, nil
}

// one returns an enabled addon.
func (c *clients) one(ctx context.Context, name string) (addons.Enabled, error) {
	all, err := c.enabled(ctx)
	if err != nil {
		return addons.Enabled{}, err
	}
	e, ok := all[name]
	if !ok {
		return e, fmt.Errorf("the addon %s is not enabled; 'lockstep addon list' shows those that are", name)
	}
	return e, nil
}

// verb is a verb about addons.
type verb struct {
	*command.Verb[*clients]
}

func newVerb(s command.Streams, cmd *cobra.Command) verb {
	v := verb{command.NewVerb(s, cmd, newClients)}
	command.Must(cmd.Flags().MarkHidden("namespace")) // addons are in one namespace
	return v
}

// names completes the names of enabled addons.
func (v verb) names() cobra.CompletionFunc {
	return command.First(v.Complete(func(ctx context.Context, client *clients, _ string) (names []string, err error) {
		all, err := client.enabled(ctx)
		for name := range all {
			names = append(names, name)
		}
		return names, err
	}))
}

func newDisable(s command.Streams) *cobra.Command {
	var force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "disable NAME",
		Short: "Delete an addon, with what it has made",
		Long: `Delete the addon's application. Everything that it made, and its definitions, are deleted with it. An addon whose definitions are
used by applications is not disabled without --force: these applications would fail with their next change.

Exit codes: 0 it is disabled; 1 it is not; 2 wrong usage; 3 with --wait, it was still there after --timeout.`,
		Example: "  lockstep addon disable notes --wait",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also if applications use its definitions")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait until it is deleted")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	cmd.ValidArgsFunction = v.names()
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		e, err := client.one(ctx, args[0])
		if err != nil {
			return err
		}
		if !force {
			apps, err := client.apps.List(ctx, "", "")
			if err != nil {
				return fmt.Errorf("which applications use the addon (--force does not ask): %w", err)
			}
			if users := addons.Users(e.Application, apps); len(users) > 0 {
				return fmt.Errorf("the addon %s is used by %s; delete or change them first, or use --force", e.Name, listed(users))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err = client.apps.Delete(ctx, e.Application.Namespace, e.Application.Name, applications.DeleteOptions{Wait: wait})
		if err == nil {
			_, err = fmt.Fprintf(s.Out, "addon/%s %s\n", e.Name, v.DryRun.Said("disabled"))
		}
		return err
	})
}
