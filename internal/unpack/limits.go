package unpack

import "fmt"

// Limit bounds what packed data of one kind may become.
type Limit struct {
	// What names the data in errors.
	What string
	// Bytes bounds the unpacked size.
	Bytes int64
	// Values bounds how many values there are in unpacked JSON; a value may take a hundred times the memory of its text.
	// 0: the data is not JSON.
	Values int
}

// The limits, each some times what the largest real data has, packed into the 1.5 MiB that the API server takes.
var (
	// WorkflowNodes: 30,000 nodes, more than fit into a workflow, are 10 MB and 400,000 values.
	WorkflowNodes = Limit{What: "status.compressedNodes", Bytes: 32 << 20, Values: 800_000}
	// ArchivedWorkflow is a workflow as it was written to the archive: its nodes are among it.
	ArchivedWorkflow = Limit{What: "the archived workflow", Bytes: 48 << 20, Values: 1_000_000}
	// Tracker is the record of an application, with its last revisions.
	Tracker = Limit{What: "spec.compression.data", Bytes: 16 << 20, Values: 400_000}
	// Report is what a step's executor says in a termination message, which the kubelet cuts at 4 KiB.
	Report = Limit{What: "the executor's report", Bytes: 1 << 20, Values: 20_000}
	// Plan is what an executor is to do, as the manager wrote it.
	Plan = Limit{What: "the executor's plan", Bytes: 4 << 20}
	// Chart is a chart's archive.
	Chart = Limit{What: "the chart", Bytes: 32 << 20}
)

// YAMLBytesMax bounds a YAML text of a user, and what its aliases add to it, in bytes. To parse takes up to 200 times as much.
const YAMLBytesMax = 512 << 10

// TooLargeError says that data is over its limit.
type TooLargeError struct {
	What  string
	Most  int64
	Units string // bytes or values
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has more than %d %s unpacked", e.What, e.Most, e.Units)
}
