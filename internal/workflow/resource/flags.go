package resource

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// flags are the supported flags of kubectl.
type flags struct {
	namespace, kind, name string
	ignoreNotFound        bool
	noWait                bool // delete does not wait until the object is gone
	noForce               bool // apply changes no field that another manager has set
	// validation says what the server does with fields that it does not know; "": it refuses them.
	validation string
}

// validations are the values of --validate with what the server calls them.
var validations = map[string]string{
	"strict": "Strict", "true": "Strict", "warn": "Warn", "ignore": "Ignore", "false": "Ignore",
}

// parseFlags parses the flags for an action.
func parseFlags(list []string, action string) (flags, error) {
	var f flags
	var words []string
	for i := 0; i < len(list); i++ {
		name, value, has := strings.Cut(list[i], "=")
		on, err := strconv.ParseBool(value)
		if !has {
			on, err = true, nil
		}
		switch {
		case err != nil && slices.Contains([]string{"--ignore-not-found", "--wait", "--server-side", "--force-conflicts"}, name):
			return f, fmt.Errorf("flags: %s: '%s' is neither true nor false", name, value)
		case name == "-n" || name == "--namespace":
			if !has {
				if i++; i == len(list) {
					return f, fmt.Errorf("flags: %s needs a value", name)
				}
				value = list[i]
			}
			f.namespace = value
		case name == "--ignore-not-found":
			f.ignoreNotFound = on
		case name == "--wait":
			f.noWait = !on
		case name == "--force-conflicts":
			f.noForce = !on
		case name == "--server-side" && !on:
			return f, errors.New("flags: --server-side=false is not supported: the server applies objects")
		case name == "--server-side": // the default behaviour
		case name == "--validate" && !slices.Contains([]string{"create", "apply", "replace"}, action):
			return f, fmt.Errorf("flags: --validate has no effect on %s", action)
		case name == "--validate":
			if f.validation = "Strict"; has {
				f.validation = validations[value]
			}
			if f.validation == "" {
				return f, fmt.Errorf("flags: --validate: '%s' is none of strict, warn, ignore, true, false", value)
			}
		case strings.HasPrefix(name, "-"):
			return f, fmt.Errorf("flags: %s is not supported", name)
		default:
			words = append(words, list[i])
		}
	}
	switch len(words) {
	case 0:
	case 1:
		var found bool
		if f.kind, f.name, found = strings.Cut(words[0], "/"); !found {
			return f, fmt.Errorf("flags: '%s' names no object; want TYPE NAME or TYPE/NAME", words[0])
		}
	case 2:
		f.kind, f.name = words[0], words[1]
	default:
		return f, fmt.Errorf("flags: more than one object: %v", words)
	}
	return f, nil
}
