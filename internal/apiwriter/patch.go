package apiwriter

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// patch is the content of a Patch or PatchVersion.
type patch struct {
	kind types.PatchType
	data []byte
}

// on returns the patch with preconditions: the object has uid, unless uid is empty, and version, if
// that is not empty. The server refuses a patch that sets either to another value than the object
// has, as a conflict.
func (p patch) on(uid types.UID, version string) ([]byte, error) {
	switch {
	case version != "":
		return p.with(map[string]any{"uid": uid, "resourceVersion": version},
			[]PatchOp{{"add", "/metadata/uid", uid}, {"add", "/metadata/resourceVersion", version}})
	case uid != "":
		return p.with(map[string]any{"uid": uid}, onlyWithUID(uid, nil))
	}
	return p.data, nil
}

// with returns the patch with preconditions: as fields of the metadata of a merge patch, or as the
// first operations of a JSON patch.
func (p patch) with(metadata map[string]any, first []PatchOp) ([]byte, error) {
	if p.kind != types.JSONPatchType {
		var doc map[string]any
		if err := json.Unmarshal(p.data, &doc); err != nil {
			return nil, err
		}
		m, _ := doc["metadata"].(map[string]any)
		if m == nil {
			m = map[string]any{}
			doc["metadata"] = m
		}
		maps.Copy(m, metadata)
		return json.Marshal(doc)
	}
	ops, found := bytes.CutPrefix(bytes.TrimSpace(p.data), []byte("["))
	if !found {
		return nil, errors.New("it is no list")
	}
	body, err := json.Marshal(first)
	if err != nil || bytes.HasPrefix(bytes.TrimSpace(ops), []byte("]")) {
		return body, err
	}
	return append(append(body[:len(body)-1], ','), ops...), nil
}

// PatchOp is an operation of a JSON patch.
type PatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func onlyWithUID(uid types.UID, ops []PatchOp) []PatchOp {
	if uid == "" {
		return ops
	}
	return append([]PatchOp{{"test", "/metadata/uid", uid}}, ops...)
}
