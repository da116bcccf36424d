package sandbox

import (
	"encoding/binary"
	"fmt"
	"io"
)

// headerBytes is the length of a frame's header: the size of the payload (4 bytes) and the kind of
// the frame (1 byte). The payload follows.
const headerBytes = 5

// weightBytes is the length of the prefix of each answer's payload: the child's memory in bytes,
// and the CPU time of the request in nanoseconds.
const weightBytes = 16

// Kinds of frames. The payload of a request begins with the length of its name, in one byte, and
// the name.
const (
	// frameHello comes from a child that is ready; the payload lists what it could not restrict.
	frameHello   byte = iota
	frameRequest      // to a child
	frameDone         // the evaluator's answer
	frameFailed       // the evaluator's error
	framePanic        // the value of a panic; the child ends
	frameTooLong      // the answer exceeds the limit
)

func writeFrame(to io.Writer, kind byte, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	frame := make([]byte, headerBytes, headerBytes+size)
	binary.BigEndian.PutUint32(frame, uint32(size))
	frame[4] = kind
	for _, p := range parts {
		frame = append(frame, p...)
	}
	_, err := to.Write(frame)
	return err
}

// readFrame reads a frame with a payload of at most bytesMax.
func readFrame(from io.Reader, bytesMax int64) (kind byte, payload []byte, err error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return 0, nil, err
	}
	size := int64(binary.BigEndian.Uint32(header[:]))
	if size > bytesMax {
		return 0, nil, fmt.Errorf("a frame of %d bytes, over %d", size, bytesMax)
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(from, payload)
	return header[4], payload, err
}
