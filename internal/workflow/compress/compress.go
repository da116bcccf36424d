// Package compress packs the nodes of a workflow's status into one string for
// status.compressedNodes: base64 of gzipped JSON, as clients of the API expect.
package compress

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack"
)

// zippers pools gzip writers: each has about a megabyte of tables. For nodes, which are repetitive,
// the fastest level compresses within a few percent of the best, at a third of the cost.
var zippers = sync.Pool{New: func() any {
	zipper, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // only an invalid level is refused
	}
	return zipper
}}

// Pack compresses data, the JSON of nodes.
func Pack(data []byte) (string, error) {
	var out bytes.Buffer
	out.Grow(len(data) / 8)
	encoder := base64.NewEncoder(base64.StdEncoding, &out)
	zipper := zippers.Get().(*gzip.Writer)
	defer zippers.Put(zipper)
	zipper.Reset(encoder)
	if _, err := zipper.Write(data); err != nil {
		return "", err
	}
	if err := errors.Join(zipper.Close(), encoder.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// Unpack decompresses nodes.
func Unpack(text string) (wf.Nodes, error) {
	data, err := unpack.Base64Gzip(text, unpack.WorkflowNodes)
	if err != nil {
		return nil, err
	}
	var nodes wf.Nodes
	if err := json.Unmarshal(data, &nodes); err != nil {
		return nil, fmt.Errorf("status.compressedNodes: %w", err)
	}
	return nodes, nil
}

// ErrInDatabase says that the nodes of a workflow are not in its status. Argo's controller moves large
// ones to a database if its configuration says so (nodeStatusOffLoad).
var ErrInDatabase = errors.New("status.offloadNodeStatusVersion: the nodes are in a database, which only a manager reads whose configuration has persistence.nodeStatusOffLoad")

// ErrNoNodes says that a database does not have the nodes of a workflow, or not in a readable form.
var ErrNoNodes = errors.New("the database does not have them")

// Nodes returns the nodes of a status, compressed or not. Uncompressed nodes beside compressed ones
// come from a client that edited them later, and replace the compressed nodes with the same ID.
func Nodes(s *wf.WorkflowStatus) (wf.Nodes, error) {
	if s.CompressedNodes == "" {
		if s.OffloadNodeStatusVersion != "" && len(s.Nodes) == 0 {
			return nil, ErrInDatabase
		}
		return s.Nodes, nil
	}
	nodes, err := Unpack(s.CompressedNodes)
	if err != nil || nodes == nil {
		return s.Nodes, err
	}
	maps.Copy(nodes, s.Nodes)
	return nodes, nil
}
