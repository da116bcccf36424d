// Package dependency finds circular dependencies.
package dependency

// Cycle returns one of the names that depends on itself, directly or indirectly, or "" if none
// does. on returns the names that a name depends on.
func Cycle(names []string, on func(name string) []string) string {
	const open, done = 1, 2
	state := map[string]int{}
	var visit func(names []string) string
	visit = func(names []string) string {
		for _, name := range names {
			switch state[name] {
			case open:
				return name
			case done:
				continue
			}
			state[name] = open
			if c := visit(on(name)); c != "" {
				return c
			}
			state[name] = done
		}
		return ""
	}
	return visit(names)
}
