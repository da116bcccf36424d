package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/unpack"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// namesMax bounds the number of charts in an index that is listed.
const namesMax = 2_000

// Newest returns, by its name, the newest version of each chart in the index of a repository. It is for
// programs on a user's own machine: the whole index is in memory.
func (f *Fetcher) Newest(ctx context.Context, from Source) (map[string]Published, error) {
	resp, err := f.ask(ctx, strings.TrimSuffix(from.Repository, "/")+"/index.yaml", &from)
	if err != nil {
		return nil, err
	}
	if err := good(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	data, err := egress.ReadAll(resp, indexJSONMax)
	if err != nil {
		return nil, err
	}
	names, err := namesIn(data)
	if err != nil {
		return nil, err
	}
	if len(names) > namesMax {
		return nil, &unpack.TooLargeError{What: "index.yaml", Most: namesMax, Units: "charts"}
	}
	out := map[string]Published{}
	for _, name := range names {
		versions, err := readIndex(bytes.NewReader(data), name, &f.parsing)
		if err != nil {
			return nil, err
		}
		at, err := choose("", len(versions), func(i int) string { return versions[i].Version })
		if err == nil {
			out[name] = versions[at]
		}
	}
	return out, nil
}

// namesIn returns the names of the charts in an index.
func namesIn(data []byte) ([]string, error) {
	var index struct {
		Entries map[string]json.RawMessage `json:"entries"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		entries, err := rawjson.Value(data, "entries")
		if err != nil || json.Unmarshal(entries, &index.Entries) != nil {
			return nil, errIndex
		}
	} else if len(data) <= unpack.YAMLBytesMax {
		if err := yamldoc.UnmarshalFetched(data, &index, "index.yaml"); err != nil {
			return nil, err
		}
	} else {
		return namesInLines(data), nil
	}
	var out []string
	for name := range index.Entries {
		out = append(out, name)
	}
	return out, nil
}

// namesInLines returns the names in an index in the form that tools write: the keys one level below
// the line "entries:".
func namesInLines(data []byte) []string {
	var out []string
	indent, within := -1, false
	for line := range strings.Lines(string(data)) {
		trimmed := strings.TrimLeft(strings.TrimRight(line, "\r\n"), " ")
		depth := len(strings.TrimRight(line, "\r\n")) - len(trimmed)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "-"):
		case depth == 0:
			within = keyOf(trimmed) == "entries"
		case within && (indent < 0 || depth == indent):
			indent = depth
			if name := keyOf(trimmed); name != "" {
				out = append(out, name)
			}
		}
	}
	return out
}
