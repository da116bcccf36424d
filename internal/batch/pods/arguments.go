package pods

import (
	"flag"
	"fmt"
	"io"
	"strings"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// parse reads a plugin's arguments into the flags that define defines. Those that the plugin does not have are left out, and
// noted: Volcano's plugins run without them, too.
func (s *Set) parse(plugin string, args batch.PluginArguments, define func(*flag.FlagSet)) error {
	f := flag.NewFlagSet(plugin, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	define(f)
	known := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		name, _, whole := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if strings.HasPrefix(args[i], "-") && f.Lookup(name) != nil {
			known = append(known, args[i])
			if !whole && !isBool(f.Lookup(name)) && i+1 < len(args) { // its value is the next argument
				i++
				known = append(known, args[i])
			}
			continue
		}
		s.ignored = append(s.ignored, fmt.Sprintf("spec.plugins.%s: unknown argument %q", plugin, args[i]))
	}
	if err := f.Parse(known); err != nil {
		return fmt.Errorf("spec.plugins.%s: %w", plugin, err)
	}
	return nil
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// Ignored are the arguments of plugins that mean nothing to them.
func (s *Set) Ignored() []string { return s.ignored }

// portMax is the highest port there is.
const portMax = 1<<16 - 1

func checkPort(plugin string, ports ...int) error {
	for _, p := range ports {
		if p < 1 || p > portMax {
			return fmt.Errorf("spec.plugins.%s: %d is no port", plugin, p)
		}
	}
	return nil
}
