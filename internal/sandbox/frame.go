package sandbox

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A frame is a header (size of the payload, 4 bytes; kind, 1 byte) and a payload.
const headerBytes = 5

// weightBytes is the length of what the payload of each answer begins with: the child's memory in bytes, and the CPU time of the
// request in nanoseconds.
const weightBytes = 16

// The kinds of frames. A request's payload begins with the length of its name, in a byte, and the name.
const (
	frameHello   byte = iota // from a child that is ready; the payload says what it could not restrict
	frameRequest             // to a child
	frameDone                // the evaluator's answer
	frameFailed              // the evaluator's error
	framePanic               // what it panicked with; the child ends
	frameTooLong             // the answer is over the limit
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

// readFrame reads a frame of at most bytesMax.
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
