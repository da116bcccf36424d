package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"lockstep.dev/lockstep/internal/cli/command"
)

// fileBytesMax bounds a scenario file.
const fileBytesMax = 1 << 20

// notInFiles are flags that a scenario file cannot set.
var notInFiles = []string{"file", "help", "resume"}

// addFile adds the flag --file, which reads other flags from a file before the command runs.
func addFile(cmd *cobra.Command) {
	var path string
	cmd.Flags().StringVarP(&path, "file", "f", "", "file with flags, by their names without dashes: 'shapes: [500x20]'; flags of the command line come first")
	command.Must(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if path == "" {
			return nil
		}
		if err := readFile(cmd.Flags(), path); err != nil {
			return command.Usage(err)
		}
		return nil
	}
}

// readFile sets the flags of a scenario file that the command line has not set.
func readFile(flags *pflag.FlagSet, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	switch {
	case err != nil:
		return err
	case len(text) > fileBytesMax:
		return fmt.Errorf("%s: is larger than %d bytes", path, fileBytesMax)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return fmt.Errorf("%s: is empty", path)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want the names of flags with their values", path, root.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		flag := flags.Lookup(key.Value)
		switch {
		case flag == nil || slices.Contains(notInFiles, key.Value):
			return fmt.Errorf("%s:%d: there is no flag --%s that a file can set", path, key.Line, key.Value)
		case seen[key.Value]:
			return fmt.Errorf("%s:%d: %s is given twice", path, key.Line, key.Value)
		}
		seen[key.Value] = true
		if flag.Changed {
			continue
		}
		if err := set(flags, flag, value); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", path, value.Line, key.Value, err)
		}
	}
	return nil
}

// set sets a flag: to a value, to the items of a list, or to NAME=VALUE,VALUE for each name of a map.
func set(flags *pflag.FlagSet, flag *pflag.Flag, value *yaml.Node) error {
	items, isList := []string{}, true
	switch value.Kind {
	case yaml.ScalarNode:
		items, isList = append(items, value.Value), false
	case yaml.SequenceNode:
		list, err := scalars(value)
		if err != nil {
			return err
		}
		items = list
	case yaml.MappingNode:
		for i := 0; i+1 < len(value.Content); i += 2 {
			name, of := value.Content[i].Value, value.Content[i+1]
			list := []string{of.Value}
			if of.Kind == yaml.SequenceNode {
				var err error
				if list, err = scalars(of); err != nil {
					return err
				}
			} else if of.Kind != yaml.ScalarNode {
				return errors.New("want a value or a list for " + name)
			}
			items = append(items, name+"="+strings.Join(list, ","))
		}
	default:
		return errors.New("want a value, a list or a map")
	}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		if !isList {
			return flags.Set(flag.Name, items[0]) // as on the command line
		}
		flag.Changed = true
		return list.Replace(items)
	}
	if isList {
		return errors.New("takes one value")
	}
	return flags.Set(flag.Name, items[0])
}

func scalars(list *yaml.Node) (out []string, err error) {
	for _, item := range list.Content {
		if item.Kind != yaml.ScalarNode {
			return nil, errors.New("want a list of values")
		}
		out = append(out, item.Value)
	}
	return out, nil
}
