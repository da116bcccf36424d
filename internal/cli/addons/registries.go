package addons

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.dev/lockstep/internal/application/addon"
	fetch "lockstep.dev/lockstep/internal/application/addons"
	"lockstep.dev/lockstep/internal/cli/command"
)

// passwordMax bounds a password on standard input, in bytes.
const passwordMax = 64 << 10

func newRegistry(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "registry",
		Aliases: []string{"registries"},
		Short:   "Registries of addons: add, list, delete",
	}, newRegistryAdd(s), newRegistryList(s), newRegistryDelete(s))
}

func newRegistryAdd(s command.Streams) *cobra.Command {
	var kind, path, user string
	var password, insecure bool
	cmd := &cobra.Command{
		Use:   "add NAME ADDRESS",
		Short: "Add a registry, or change it",
		Long: `Add a registry to the list in the cluster, which KubeVela's command line reads, too: a repository with an index (https://), an OCI
registry (oci://) or a Git repository. A password or token goes to a Secret.`,
		Example: "  lockstep addon registry add ours https://addons.example.com\n  lockstep addon registry add git https://git.example.com/addons.git --path addons\n" +
			"  lockstep addon registry add oci oci://registry.example.com/addons --username me --password-stdin",
		Args: command.Args(2, 2, "say which: lockstep addon registry add NAME ADDRESS"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	command.WordFlag(cmd, &kind, "type", "", "the type; default: by the address", addon.TypeHelm, addon.TypeOCI, addon.TypeGit)
	cmd.Flags().StringVar(&path, "path", "", "the folder of a Git repository that has a folder for each addon")
	cmd.Flags().StringVar(&user, "username", "", "the user of a repository or an OCI registry")
	cmd.Flags().BoolVar(&password, "password-stdin", false, "read the password, or the token of a Git repository, from standard input")
	cmd.Flags().BoolVar(&insecure, "insecure-skip-tls", false, "do not check the server's certificate; not for Git")
	cmd.ValidArgsFunction = command.First(v.registries())
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		if problems := validation.IsDNS1123Label(args[0]); len(problems) > 0 || args[0] == localRegistry {
			return command.Usagef("%q is no name of a registry", args[0])
		}
		r, err := fetch.At(args[0], args[1], kind, path)
		if err != nil {
			return command.Usage(err)
		}
		switch {
		case r.Folder != "":
			return command.Usagef("%s is a folder on this machine, which others do not see: use it with --registry", args[1])
		case r.Helm == nil && (user != "" || insecure):
			return command.Usagef("--username and --insecure-skip-tls are not for Git repositories")
		case r.Helm != nil:
			r.Helm.Username, r.Helm.InsecureSkipTLS = user, insecure
		}
		if password {
			data, err := io.ReadAll(io.LimitReader(s.In, passwordMax))
			if err != nil {
				return err
			}
			r.SetPassword(strings.TrimRight(string(data), "\r\n"))
		}
		replaced, err := client.AddRegistry(ctx, *r)
		if err != nil {
			return err
		}
		said := "added"
		if replaced {
			said = "changed"
		}
		_, err = fmt.Fprintf(s.Out, "registry/%s %s\n", r.Name, v.DryRun.Said(said))
		return err
	})
}

func newRegistryList(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the registries",
		Example: "  lockstep addon registry list",
		Args:    command.NoArgs,
	}
	v := newVerb(s, cmd)
	command.OutputFlag(cmd, &output, "json", "name")
	return v.Run(func(ctx context.Context, client *clients, _ string, _ []string) error {
		all, err := client.Registries(ctx)
		if err != nil {
			return err
		}
		type registry struct {
			Name    string `json:"name"`
			Type    string `json:"type"`
			Address string `json:"address"`
		}
		rows := []registry{}
		for i := range all {
			rows = append(rows, registry{all[i].Name, all[i].Type(), all[i].Address()})
		}
		return command.PrintList(s.Out, output, "registry", rows, "NAME\tTYPE\tADDRESS", func(r registry) string {
			return r.Name + "\t" + r.Type + "\t" + r.Address
		})
	})
}

func newRegistryDelete(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a registry from the list; addons from it stay enabled",
		Example: "  lockstep addon registry delete ours",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = command.First(v.registries())
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		err := client.DeleteRegistry(ctx, args[0])
		if err == nil {
			_, err = fmt.Fprintf(s.Out, "registry/%s %s\n", args[0], v.DryRun.Said("deleted"))
		}
		return err
	})
}

// registries completes the names of registries.
func (v verb) registries() cobra.CompletionFunc {
	return v.Complete(func(ctx context.Context, client *clients, _ string) (names []string, err error) {
		all, err := client.Registries(ctx)
		for i := range all {
			names = append(names, all[i].Name)
		}
		return names, err
	})
}
