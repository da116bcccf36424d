package lint

import (
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// locate returns the line of a path, or of its longest part that exists in the document. If within is
// not 0 and the path is that of a block of text, it returns that line of the text.
func locate(n *yaml.Node, path string, within int) int {
	line := n.Line
	for path != "" {
		next, rest, ok := step(n, path)
		if !ok {
			break
		}
		n, path, line = next, rest, next.Line
	}
	if within > 0 && path == "" && n.Style&yaml.LiteralStyle != 0 {
		return line + within // the text begins on the line after its key
	}
	return line
}

// step follows the first element of a path, a field or an index, and returns the rest of the path.
func step(n *yaml.Node, path string) (next *yaml.Node, rest string, ok bool) {
	n = target(n)
	path = strings.TrimPrefix(path, ".")
	if strings.HasPrefix(path, "[") {
		index, rest, found := strings.Cut(path[1:], "]")
		i, err := strconv.Atoi(index)
		switch {
		case found && index == "" && n.Kind == yaml.SequenceNode: // any item: the first one that has the rest of the path
			for _, item := range n.Content {
				if follows(item, rest) {
					return item, rest, true
				}
			}
			return nil, "", false
		case found && n.Kind == yaml.MappingNode && keyed(n, index) != nil: // a key such as requests[cpu]
			return keyed(n, index), rest, true
		case !found || err != nil:
			return nil, "", false
		case n.Kind == yaml.MappingNode && i == 0: // a single step in place of a list of one
			return n, rest, true
		case n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content):
			return nil, "", false
		}
		return n.Content[i], rest, true
	}
	if n.Kind != yaml.MappingNode {
		return nil, "", false
	}
	// Take the longest matching key: keys may contain dots.
	var key, value *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		fits := strings.HasPrefix(path, k.Value) && (len(path) == len(k.Value) || strings.ContainsAny(path[len(k.Value):len(k.Value)+1], ".["))
		if fits && (key == nil || len(k.Value) > len(key.Value)) {
			key, value = k, n.Content[i+1]
		}
	}
	if key == nil {
		return nil, "", false
	}
	return atKey(key, value), path[len(key.Value):], true
}

// follows reports whether a document has a path.
func follows(n *yaml.Node, path string) bool {
	for path != "" {
		next, rest, ok := step(n, path)
		if !ok {
			return false
		}
		n, path = next, rest
	}
	return true
}

// keyed returns the value of a key, or nil.
func keyed(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return atKey(n.Content[i], n.Content[i+1])
		}
	}
	return nil
}

// atKey returns a value with the line of its key: a block value begins on the next line.
func atKey(key, value *yaml.Node) *yaml.Node {
	at := *target(value)
	at.Line = key.Line
	return &at
}

func target(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// child returns the value of a field, or nil.
func child(n *yaml.Node, name string) *yaml.Node {
	if n = target(n); n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return target(n.Content[i+1])
		}
	}
	return nil
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}
