package command

import (
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
)

// NoArgs refuses positional arguments as wrong usage, and suggests what the user may have meant.
func NoArgs(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(meant, " or "))
	}
	return Usage(err)
}

// OneArg requires exactly one argument, which the error calls name.
func OneArg(name string) cobra.PositionalArgs {
	return Args(1, 1, "want 1 argument(s) ["+name+"], have %d")
}

// AtMostOneArg requires no argument or one, which the error calls name.
func AtMostOneArg(name string) cobra.PositionalArgs {
	return Args(0, 1, "want at most 1 "+name+", have %d")
}

// SomeArgs requires at least one argument. The error calls them name.
func SomeArgs(name string) cobra.PositionalArgs { return Args(1, math.MaxInt, "want at least 1 "+name) }

// Args requires min to max arguments. The error is text, in which %d is the number of arguments.
func Args(min, max int, text string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch n := len(args); {
		case n >= min && n <= max:
			return nil
		case strings.Contains(text, "%d"):
			return Usagef(text, n)
		}
		return Usagef("%s", text)
	}
}

// KeyValues parses NAME=VALUE texts, which are the values of flag.
func KeyValues(flag string, texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, Usagef("%s %q: want NAME=VALUE", flag, text)
		}
		out[name] = value
	}
	return out, nil
}
