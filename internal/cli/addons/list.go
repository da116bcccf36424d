package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// row is an addon in a list.
type row struct {
	Name        string `json:"name"`
	Registry    string `json:"registry,omitempty"`
	Available   string `json:"available,omitempty"`
	Enabled     string `json:"enabled,omitempty"`
	Phase       string `json:"phase,omitempty"`
	Description string `json:"description,omitempty"`
}

func newList(s command.Streams) *cobra.Command {
	var output, registry string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List addons: those that are enabled, and those in the registries",
		Long: `List the addons that are enabled, and those in the registries with their newest versions. A registry that cannot be read is named on
stderr.`,
		Aliases: []string{"ls"},
		Example: "  lockstep addon list\n  lockstep addon list --registry ./addons -o name",
		Args:    command.NoArgs,
	}
	v := newVerb(s, cmd)
	cmd.Flags().StringVar(&registry, "registry", "", "the registry, by its name, its address or a folder; default: all")
	command.OutputFlag(cmd, &output, "json", "name")
	return v.Run(func(ctx context.Context, client *clients, _ string, _ []string) error {
		rows, err := v.rows(ctx, client, registry)
		if err != nil {
			return err
		}
		return command.PrintList(s.Out, output, "addon", rows, "NAME\tREGISTRY\tAVAILABLE\tENABLED\tPHASE\tDESCRIPTION", func(r row) string {
			return strings.Join([]string{r.Name, r.Registry, r.Available, r.Enabled, r.Phase, display.OneLine(r.Description)}, "\t")
		})
	})
}

func (v verb) rows(ctx context.Context, client *clients, registry string) ([]row, error) {
	enabled, err := client.enabled(ctx)
	if err != nil {
		return nil, err
	}
	registries, err := client.chosen(ctx, registry)
	if err != nil {
		return nil, err
	}
	rows := []row{}
	for i := range registries {
		r := registries[i]
		if err := client.WithPassword(ctx, &r); err != nil {
			return nil, err
		}
		list, err := client.fetcher.List(ctx, &r)
		if err != nil {
			fmt.Fprintf(v.Err, "%v\n", err)
			continue
		}
		for _, a := range list {
			one := row{Name: a.Name, Registry: r.Name, Available: a.Version, Description: a.Description}
			if e, ok := enabled[a.Name]; ok && e.Registry == r.Name {
				one.Enabled, one.Phase = e.Version, string(e.Application.Status.Phase)
				delete(enabled, a.Name)
			}
			rows = append(rows, one)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(enabled)) {
		e := enabled[name]
		rows = append(rows, row{Name: name, Registry: e.Registry, Enabled: e.Version, Phase: string(e.Application.Status.Phase)})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	return rows, nil
}

// state is what 'addon status' shows.
type state struct {
	row
	Application string          `json:"application"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Message     string          `json:"message,omitempty"`
	Services    []service       `json:"components,omitempty"`
}

type service struct {
	Name    string `json:"name"`
	Cluster string `json:"cluster,omitempty"`
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"`
}

func newStatus(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status NAME",
		Short:   "The state of an addon that is enabled: version, parameters, components",
		Example: "  lockstep addon status notes\n  lockstep addon status notes -o json",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	command.OutputFlag(cmd, &output, "json", "yaml")
	cmd.ValidArgsFunction = v.names()
	return v.Run(func(ctx context.Context, client *clients, _ string, args []string) error {
		st, err := stateOf(ctx, client, args[0])
		if err != nil {
			return err
		}
		if printed, err := command.Print(s.Out, output, st); printed {
			return err
		}
		w := command.Columns(s.Out)
		fmt.Fprintf(w, "Addon:\t%s\nVersion:\t%s\nRegistry:\t%s\nApplication:\t%s\nPhase:\t%s\n", st.Name, st.Enabled, st.Registry, st.Application, st.Phase)
		if st.Message != "" {
			fmt.Fprintf(w, "Message:\t%s\n", st.Message)
		}
		if len(st.Parameters) > 0 {
			fmt.Fprintf(w, "Parameters:\t%s\n", st.Parameters)
		}
		if len(st.Services) > 0 {
			fmt.Fprint(w, "\nCOMPONENT\tCLUSTER\tHEALTHY\tMESSAGE\n")
		}
		for _, c := range st.Services {
			fmt.Fprintf(w, "%s\t%s\t%t\t%s\n", c.Name, c.Cluster, c.Healthy, display.OneLine(c.Message))
		}
		return w.Flush()
	})
}

func stateOf(ctx context.Context, client *clients, name string) (*state, error) {
	e, err := client.one(ctx, name)
	if err != nil {
		return nil, err
	}
	parameters, err := client.Parameters(ctx, name)
	if err != nil {
		return nil, err
	}
	app := e.Application
	st := &state{row: row{Name: name, Registry: e.Registry, Enabled: e.Version, Phase: string(app.Status.Phase)}, Application: app.Namespace + "/" + app.Name}
	if parameters != nil {
		if st.Parameters, err = json.Marshal(parameters); err != nil {
			return nil, err
		}
	}
	for _, c := range app.Status.Conditions {
		if c.Type == "Ready" && c.Status == "False" {
			st.Message = display.OneLine(c.Message)
		}
	}
	for _, c := range app.Status.Services {
		st.Services = append(st.Services, service{c.Name, c.Cluster, c.Healthy, c.Message})
	}
	return st, nil
}
