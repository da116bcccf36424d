package unpack

import "fmt"

// Limit is the maximum unpacked size of one kind of packed data.
type Limit struct {
	// What names the data in errors.
	What string
	// Bytes is the maximum unpacked size.
	Bytes int64
	// Values is the maximum count of values in unpacked JSON (see Counter); a value may take a
	// hundred times the memory of its text. 0 means that the data is not JSON.
	Values int
}

// The limits. Each is several times the size of the largest real data, which is packed into the 1.5
// MiB that the API server accepts.
var (
	// WorkflowNodes is the nodes of a workflow: 30,000 nodes, more than fit into a workflow, are 10
	// MB and 400,000 values.
	WorkflowNodes = Limit{What: "status.compressedNodes", Bytes: 32 << 20, Values: 800_000}
	// ArchivedWorkflow is a workflow as written to the archive, including its nodes.
	ArchivedWorkflow = Limit{What: "the archived workflow", Bytes: 48 << 20, Values: 1_000_000}
	// Tracker is the record of an application, with its last revisions.
	Tracker = Limit{What: "spec.compression.data", Bytes: 16 << 20, Values: 400_000}
	// Report is the report of a step's executor in a termination message, which the kubelet cuts at
	// 4 KiB.
	Report = Limit{What: "the executor's report", Bytes: 1 << 20, Values: 20_000}
	// Plan is the work of an executor, as written by the manager.
	Plan = Limit{What: "the executor's plan", Bytes: 4 << 20}
	// Chart is a chart's archive.
	Chart = Limit{What: "the chart", Bytes: 32 << 20}
	// Addon is an addon's archive, with the headers of its files.
	Addon = Limit{What: "the addon", Bytes: 20 << 20}
)

// YAMLBytesMax is the maximum size of a user's YAML text, and the maximum size that its aliases
// add, in bytes. Parsing takes up to 200 times as much memory.
const YAMLBytesMax = 512 << 10

// TooLargeError says that data exceeds its limit.
type TooLargeError struct {
	What  string
	Most  int64
	Units string // bytes or values
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has more than %d %s unpacked", e.What, e.Most, e.Units)
}
