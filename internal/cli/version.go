package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
)

// versionReport is the JSON and YAML form of `version`.
type versionReport struct {
	SchemaVersion string `json:"schemaVersion"`
	Version       string `json:"version"`
	Commit        string `json:"commit,omitempty"`
	Dirty         bool   `json:"dirty,omitempty"` // the working tree differed from the commit
	Go            string `json:"go"`
	Platform      string `json:"platform"`
	// Kubernetes is the version of the client libraries.
	Kubernetes string `json:"kubernetes,omitempty"`
}

func newVersion(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  lockstep version\n  lockstep version -o json",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			report := buildVersion()
			if printed, err := command.Print(s.Out, output, report); printed {
				return err
			}
			_, err := fmt.Fprintf(s.Out, "lockstep %s (%s, %s)\n", report.Version, report.Go, report.Platform)
			return err
		},
	}
	command.OutputFlag(cmd, &output, "json", "yaml")
	return cmd
}

// buildVersion returns the version data that the linker and Go's build wrote into the program.
func buildVersion() versionReport {
	report := versionReport{SchemaVersion: "v1", Version: Version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return report
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			report.Commit = setting.Value
		case "vcs.modified":
			report.Dirty = setting.Value == "true"
		}
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/client-go" {
			report.Kubernetes = module.Version
		}
	}
	return report
}
