package pods

import (
	"flag"
	"fmt"
	"io"
	"strings"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// parse parses a plugin's arguments into the flags that define defines. Unknown arguments are
// skipped and added to the ignored ones, because Volcano's plugins run in spite of them too. The
// arguments in ports must be port numbers.
func (s *Set) parse(plugin string, args batch.PluginArguments, define func(*flag.FlagSet), ports ...*int) error {
	f := flag.NewFlagSet(plugin, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	define(f)
	known := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		name, _, whole := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if strings.HasPrefix(args[i], "-") && f.Lookup(name) != nil {
			known = append(known, args[i])
			// The flag's value is the next argument.
			if !whole && !isBool(f.Lookup(name)) && i+1 < len(args) {
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
	for _, p := range ports {
		if *p < 1 || *p > portMax {
			return fmt.Errorf("spec.plugins.%s: %d is no port", plugin, *p)
		}
	}
	return nil
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// Ignored returns the plugin arguments that their plugins do not know.
func (s *Set) Ignored() []string { return s.ignored }

// portMax is the highest valid port.
const portMax = 1<<16 - 1
