package migrate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/admission"
	"lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/migrate"
	schedulerconfig "lockstep.dev/lockstep/internal/scheduler/config"
	"lockstep.dev/lockstep/internal/workflow/display"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// pageSize is the number of objects that one request lists.
const pageSize = 500

// report is the JSON form of 'migrate check'.
type report struct {
	SchemaVersion string           `json:"schemaVersion"`
	Objects       []migrate.Result `json:"objects"`
}

// New returns the command 'migrate'.
func New(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "migrate",
		Short: "Move to Lockstep from Volcano, Argo Workflows or KubeVela",
	}, newCheck(s))
}

func newCheck(s command.Streams) *cobra.Command {
	var (
		files     []string
		recursive bool
		output    string
		all       bool
	)
	cmd := &cobra.Command{
		Use:   "check [-f FILE|FOLDER|-]...",
		Short: "Say what becomes of manifests, or of the objects of a cluster, under Lockstep",
		Long: `Say of jobs, queues, PodGroups, workflows, applications, definitions and scheduler configurations whether they work under
Lockstep, work in another way, or have parts that are missing. With -f nothing is asked of a cluster; without it the objects of
the cluster are checked, in all namespaces, together with the ConfigMaps whose keys end in ` + migrate.SchedulerConfigSuffix + `.

What is given together is checked together: a workflow may refer to a template of another file. Nothing is written.

Exit codes: 0 nothing is missing; 1 something is, or there was nothing to check; 2 wrong usage.`,
		Example: `  lockstep migrate check -f manifests/ -R
  lockstep migrate check --all -o json`,
		Args: command.NoArgs,
	}
	kube := command.KubeFlags(cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files and folders, or - for standard input")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "look into the folders of folders, too")
	cmd.Flags().BoolVar(&all, "all", false, "list the objects that simply work, too")
	command.OutputFlag(cmd, &output, "json", "yaml")
	cmd.RunE = func(*cobra.Command, []string) error {
		objects, err := read(kube, files, recursive)
		if err != nil {
			return err
		}
		rules, err := admission.New(config.CRDs(), config.Policies())
		if err != nil {
			return err
		}
		var failed error
		results := migrate.Check(objects, migrate.Options{
			Served: migrate.ServedBy(config.CRDs()), Applications: applications.Check, Workflows: lintWorkflows,
			Refused: func(u *unstructured.Unstructured) []admission.Refusal {
				refusals, err := rules.Check(u)
				failed = errors.Join(failed, err)
				return refusals
			},
		})
		if failed != nil {
			return failed
		}
		if len(results) == 0 {
			return fmt.Errorf("there was nothing to check among %d objects: no job, queue, workflow, application or scheduler configuration",
				len(objects))
		}
		if printed, err := command.Print(s.Out, output, report{"migrate/v1", results}); err != nil {
			return err
		} else if !printed {
			print(s, results, all)
		}
		missing := 0
		for _, r := range results {
			if r.Verdict == schedulerconfig.Missing {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d objects have parts that are missing", missing, len(results))
		}
		return nil
	}
	return cmd
}

func lintWorkflows(objects []runtime.Object) []engine.Problem {
	return engine.Lint(objects, nil, template.InProcess())
}

// read returns the objects that files contain. Without files it returns the cluster's objects.
func read(kube *genericclioptions.ConfigFlags, files []string, recursive bool) ([]migrate.Object, error) {
	b := resource.NewBuilder(kube).Unstructured().ContinueOnError()
	if len(files) > 0 {
		b = b.Local().FilenameParam(false, &resource.FilenameOptions{Filenames: files, Recursive: recursive})
	} else {
		client, err := kube.ToDiscoveryClient()
		if err != nil {
			return nil, err
		}
		types, err := listable(client)
		if err != nil {
			return nil, err
		}
		b = b.AllNamespaces(true).RequestChunksOf(pageSize).SelectAllParam(true).ResourceTypes(append(types, "configmaps")...)
	}
	infos, err := b.Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	var out []migrate.Object
	for _, info := range infos {
		u, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		o := migrate.Object{Unstructured: u}
		if len(files) > 0 {
			o.Source = info.Source
		}
		out = append(out, o)
	}
	return out, nil
}

// listable returns the resources of the checked groups that the server lists, with their groups.
func listable(client discovery.DiscoveryInterface) ([]string, error) {
	lists, err := client.ServerPreferredResources()
	if err != nil && len(lists) == 0 {
		return nil, err // some groups may be down; those are not checked
	}
	var out []string
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		if !slices.Contains(migrate.Groups(), group) {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") {
				out = append(out, r.Name+"."+group)
			}
		}
	}
	return out, nil
}

// print prints a line for each part that does not simply work, or for each object if all is set, and
// a summary.
func print(s command.Streams, results []migrate.Result, all bool) {
	w := command.Columns(s.Out)
	count := map[schedulerconfig.Verdict]int{}
	header := false
	line := func(columns ...string) {
		if !header {
			header = true
			fmt.Fprintln(w, "OBJECT\tVERDICT\tFIELD\tWHAT")
		}
		for i, c := range columns {
			columns[i] = display.OneLine(c)
		}
		fmt.Fprintln(w, strings.Join(columns, "\t"))
	}
	for i := range results {
		r := &results[i]
		count[r.Verdict]++
		name := r.String()
		if len(r.Parts) == 0 && all {
			line(name, string(r.Verdict), "", "")
		}
		for _, p := range r.Parts {
			line(name, string(p.Verdict), p.Field, p.Text)
		}
	}
	_ = w.Flush() // an error of stdout shows in the next write
	fmt.Fprintf(s.Err, "%d objects: %d work, %d work in another way, %d have parts that are missing\n", len(results),
		count[schedulerconfig.Works], count[schedulerconfig.Differs], count[schedulerconfig.Missing])
}
