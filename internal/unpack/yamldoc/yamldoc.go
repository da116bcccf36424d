// Package yamldoc decodes YAML texts of users within the limits of package unpack.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/unpack"
)

// ToJSON converts a user's YAML text to JSON. what names the text in errors.
func ToJSON(text []byte, what string) ([]byte, error) {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

// Unmarshal decodes a user's YAML text into value. what names the text in errors.
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

// errYAML says that YAML cannot be decoded. The parser's own messages quote the text.
var errYAML = errors.New("it is no YAML of the form that is wanted")

// UnmarshalFetched decodes a YAML text fetched from an address that a user chose, so that the text
// may be anyone's data. The error quotes nothing of the text.
func UnmarshalFetched(text []byte, value any, what string) error {
	if err := Check(text, unpack.YAMLBytesMax, what); err != nil {
		return err
	}
	if yaml.Unmarshal(text, value) != nil {
		return fmt.Errorf("%s: %w", what, errYAML)
	}
	return nil
}

// Check returns an error if the text has more than limit bytes, or if its aliases add more than
// that when expanded. A text without aliases, like nearly all, is not parsed for this.
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

// depthMax is the maximum nesting depth of values, through aliases.
const depthMax = 1000

// spend subtracts the size of a value, with its aliases expanded, from left. The result is negative
// if left is too small.
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
