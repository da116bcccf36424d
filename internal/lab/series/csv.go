package series

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
)

// writeCSV writes a line for each run of a report, with a column for each figure of the runs' JSON.
// Columns are named as in --fail-if and in the order of their names. A list is its length.
func writeCSV(w io.Writer, report any) error {
	data, err := json.Marshal(report)
	if err != nil {
		return err
	}
	var content struct {
		Runs []map[string]any `json:"runs"`
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return err
	}
	columns := map[string]bool{}
	var lines []map[string]string
	for _, run := range content.Runs {
		line := map[string]string{}
		flatten("", run, line)
		for name := range line {
			columns[name] = true
		}
		lines = append(lines, line)
	}
	head := sorted(columns)
	c := csv.NewWriter(w)
	if err := c.Write(head); err != nil {
		return err
	}
	for _, line := range lines {
		row := make([]string, len(head))
		for i, name := range head {
			row[i] = line[name]
		}
		if err := c.Write(row); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// flatten adds the values of an object to a line.
func flatten(prefix string, object map[string]any, line map[string]string) {
	for name, v := range object {
		path := prefix + name
		switch v := v.(type) {
		case map[string]any:
			flatten(path+".", v, line)
		case []any:
			line[path] = strconv.Itoa(len(v))
		case float64:
			line[path] = strconv.FormatFloat(v, 'f', -1, 64)
		case bool:
			line[path] = strconv.FormatBool(v)
		case string:
			line[path] = v
		}
	}
}
