package charts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/unpack"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Bounds on an index, which is the largest foreign text that the manager reads.
const (
	indexMax     = 64 << 20 // bytes of YAML, read line by line
	indexJSONMax = 16 << 20
	lineMax      = 1 << 20
	versionMax   = 128 << 10 // bytes about one version of a chart
	versionsMax  = 10_000
)

// errIndex means that the index cannot be parsed. It gives no details, because they would quote the
// index.
var errIndex = errors.New("index.yaml is no index of charts that can be read")

// readIndex returns an index's entries for one chart. A small index is parsed as a whole. Of a
// large YAML index, only the lines about the chart are parsed, because the parser takes 200 times
// the size of its input in memory. parsing is held while the parser runs.
func readIndex(from io.Reader, name string, parsing sync.Locker) ([]Published, error) {
	r := bufio.NewReaderSize(&io.LimitedReader{R: from, N: indexMax + 1}, unpack.YAMLBytesMax+1)
	start, err := r.Peek(unpack.YAMLBytesMax + 1)
	switch {
	case err == nil && bytes.HasPrefix(bytes.TrimLeft(start, " \t\r\n"), []byte("{")):
		return fromJSON(r, name, parsing)
	case err == nil:
		return fromLines(r, name)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	parsing.Lock()
	defer parsing.Unlock()
	var index struct {
		Entries map[string][]Published `json:"entries"`
	}
	if err := yamldoc.UnmarshalFetched(start, &index, "index.yaml"); err != nil {
		return nil, err
	}
	return index.Entries[name], nil
}

func fromJSON(r io.Reader, name string, parsing sync.Locker) ([]Published, error) {
	data, err := io.ReadAll(io.LimitReader(r, indexJSONMax+1))
	if err != nil {
		return nil, err
	}
	if len(data) > indexJSONMax {
		return nil, &unpack.TooLargeError{What: "index.yaml, which is JSON,", Most: indexJSONMax, Units: "bytes"}
	}
	parsing.Lock()
	defer parsing.Unlock()
	if !json.Valid(data) {
		return nil, errIndex
	}
	entries, err := rawjson.Value(data, "entries")
	if err == nil && entries != nil {
		entries, err = rawjson.Value(entries, name)
	}
	if err != nil || len(entries) > versionsMax*versionMax/16 {
		return nil, errIndex
	}
	var counter unpack.Counter
	if counter.Add(entries) > 100*versionsMax {
		return nil, errIndex
	}
	var out []Published
	if entries != nil && json.Unmarshal(entries, &out) != nil {
		return nil, errIndex
	}
	return out, nil
}

// fromLines reads an index in the form that tools write: "entries:" at the start of a line, the
// charts below, each with a list.
func fromLines(r *bufio.Reader, name string) ([]Published, error) {
	const (
		before = iota // "entries:" has not been read
		within
		wanted // in the chart's list
	)
	var (
		out     []Published
		item    bytes.Buffer
		state   = before
		indent  = -1 // indent of the charts' names
		size    int
		atItems = -1 // indent of the items of the list
	)
	end := func() error {
		if item.Len() == 0 {
			return nil
		}
		var one []Published
		if err := yamldoc.UnmarshalFetched(item.Bytes(), &one, "index.yaml"); err != nil {
			return err
		}
		item.Reset()
		if out = append(out, one...); len(out) > versionsMax {
			return fmt.Errorf("the index has more than %d versions of the chart", versionsMax)
		}
		return nil
	}
	for {
		line, err := readLine(r)
		if size += len(line); size > indexMax {
			return nil, &unpack.TooLargeError{What: "index.yaml", Most: indexMax, Units: "bytes"}
		}
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return out, end()
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		text := strings.TrimRight(string(line), "\r\n")
		trimmed := strings.TrimLeft(text, " ")
		depth := len(text) - len(trimmed)
		blank := trimmed == "" || strings.HasPrefix(trimmed, "#")
		switch {
		case state == before:
			if depth == 0 && keyOf(trimmed) == "entries" {
				state = within
			}
			continue
		case !blank && depth == 0 && !strings.HasPrefix(trimmed, "-"):
			return out, end()
		case !blank && indent < 0:
			indent = depth
		}
		if !blank && depth == indent && !strings.HasPrefix(trimmed, "-") {
			if state == wanted {
				return out, end()
			}
			if keyOf(trimmed) == name {
				state = wanted
			}
			continue
		}
		if state != wanted {
			continue
		}
		if !blank && strings.HasPrefix(trimmed, "-") && (atItems < 0 || depth == atItems) {
			atItems = depth
			if err := end(); err != nil {
				return nil, err
			}
		}
		if item.Len()+len(line) > versionMax {
			return nil, fmt.Errorf("index.yaml has more than %d bytes about one version of the chart", versionMax)
		}
		item.Write(line)
	}
}

// readLine reads a line including its end. A line longer than lineMax is an error.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > lineMax {
			return nil, fmt.Errorf("index.yaml has a line of more than %d bytes", lineMax)
		}
		if err == nil && out == nil {
			return part, nil
		}
		if out = append(out, part...); !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
	}
}

// keyOf returns the key of a line whose value follows on later lines, or "" for other lines.
func keyOf(trimmed string) string {
	key, rest, ok := strings.Cut(trimmed, ":")
	if rest = strings.TrimSpace(rest); !ok || rest != "" && !strings.HasPrefix(rest, "#") {
		return ""
	}
	return strings.Trim(strings.TrimSpace(key), `"'`)
}
