package yamldoc

import (
	"bytes"
	"errors"
	"fmt"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/unpack"
)

// ToJSON makes JSON of a YAML text of a user. what names it in errors.
func ToJSON(text []byte, what string) ([]byte, error) {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

// Unmarshal reads a YAML text of a user into value. what names it in errors.
func Unmarshal(text []byte, value any, what string) error {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return err
	}
	return yaml.Unmarshal(text, value)
}

// UnmarshalStrict is Unmarshal for texts in which every field must be known.
func UnmarshalStrict(text []byte, value any, what string) error {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return err
	}
	return yaml.UnmarshalStrict(text, value)
}

// errYAML is for YAML that cannot be read. The parser's own messages quote it.
var errYAML = errors.New("it is no YAML of the form that is wanted")

// UnmarshalFetched reads a YAML text that was fetched from an address of a user's choice, which may be anything's. The error
// quotes nothing of it.
func UnmarshalFetched(text []byte, value any, what string) error {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return err
	}
	if yaml.Unmarshal(text, value) != nil {
		return fmt.Errorf("%s: %w", what, errYAML)
	}
	return nil
}

// Check returns an error if the text has more than limit bytes, or its aliases add more than that when they are written out. A
// text without aliases, which is nearly all, is not parsed for that.
func Check(text []byte, limit int, what string) error {
	if len(text) > limit {
		return &unpack.TooLargeError{What: what, Most: int64(limit), Units: "bytes"}
	}
	if !bytes.ContainsRune(text, '*') || !bytes.ContainsRune(text, '&') {
		return nil
	}
	docs := yamlv3.NewDecoder(bytes.NewReader(text))
	left := limit + len(text)
	for {
		var root yamlv3.Node
		if err := docs.Decode(&root); err != nil {
			return nil //nolint:nilerr // it is the end, or a mistake that the caller's parser will find, too
		}
		if left = spend(&root, left, 0); left < 0 {
			return &unpack.TooLargeError{What: what + ", with its aliases written out,", Most: int64(limit), Units: "bytes"}
		}
	}
}

// depthMax bounds how deep values are in each other, through aliases.
const depthMax = 1000

// spend takes the size of a value, with its aliases written out, from left. The result is negative if there is too little.
func spend(n *yamlv3.Node, left, depth int) int {
	if left -= 1 + len(n.Value); left < 0 || depth > depthMax {
		return -1
	}
	for _, child := range n.Content {
		if left = spend(child, left, depth+1); left < 0 {
			return -1
		}
	}
	if n.Kind == yamlv3.AliasNode && n.Alias != nil {
		return spend(n.Alias, left, depth+1)
	}
	return left
}
