package unpack

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Base64Gzip unpacks gzip data encoded in base64.
func Base64Gzip(text string, limit Limit) ([]byte, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not base64", limit.What)
	}
	return Gzip(data, limit)
}

// pieceBytes is the size of the buffers for data of unknown size.
const pieceBytes = 1 << 20

// Gzip unpacks gzip data. If the limit counts values, the content is JSON.
func Gzip(data []byte, limit Limit) ([]byte, error) {
	size := claimed(data)
	if size > limit.Bytes || size > 1032*int64(len(data)) { // more than gzip can
		size = 0
	}
	// Separate pieces: one growing buffer would take twice the memory before the limit is noticed.
	var full [][]byte
	out := make([]byte, 0, size)
	err := each(data, limit, func(piece []byte) {
		if len(out)+len(piece) > cap(out) {
			if len(out) > 0 {
				full = append(full, out)
			}
			out = make([]byte, 0, max(pieceBytes, len(piece)))
		}
		out = append(out, piece...)
	})
	if err != nil || full == nil {
		return out, err
	}
	return slices.Concat(append(full, out)...), nil
}

// claimed returns the unpacked size according to the end of the gzip data.
func claimed(data []byte) int64 {
	if len(data) < 4 {
		return 0
	}
	return int64(binary.LittleEndian.Uint32(data[len(data)-4:]))
}

// each unpacks data piece by piece, and stops when a limit is exceeded.
func each(data []byte, limit Limit, take func(piece []byte)) error {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s is not gzip", limit.What)
	}
	var counter Counter
	var size int64
	piece := make([]byte, 32<<10)
	for {
		n, err := z.Read(piece)
		if size += int64(n); size > limit.Bytes {
			return &TooLargeError{limit.What, limit.Bytes, "bytes"}
		}
		if limit.Values > 0 && counter.Add(piece[:n]) > limit.Values {
			return &TooLargeError{limit.What, int64(limit.Values), "values"}
		}
		take(piece[:n])
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s is not gzip, or a part of it is missing", limit.What)
		}
	}
}

// Counter counts the values of a JSON text that arrives in pieces: each object or list counts as
// one, and each of its values except the first as another, so a text with count n has at most 2n+1
// values. For invalid JSON the count has no meaning, but a decoder that stops at the first error
// has created no more values than that.
type Counter struct {
	values          int
	quoted, escaped bool
}

// Add counts a piece, and returns the total count.
func (c *Counter) Add(piece []byte) int {
	for _, b := range piece {
		switch {
		case c.escaped:
			c.escaped = false
		case c.quoted:
			c.escaped, c.quoted = b == '\\', b != '"'
		case b == '"':
			c.quoted = true
		case b == ',' || b == '{' || b == '[':
			c.values++
		}
	}
	return c.values
}
