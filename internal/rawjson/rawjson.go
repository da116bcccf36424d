package rawjson

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// ErrNotJSON says that data is not a complete JSON object.
var ErrNotJSON = errors.New("not an object in JSON")

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// stringEnd returns the offset after the string that begins at i, or -1.
func stringEnd(data []byte, i int) int {
	if i >= len(data) || data[i] != '"' {
		return -1
	}
	for i++; i < len(data); i++ {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			return -1
		}
		escape := bytes.IndexByte(data[i:i+n], '\\')
		if escape < 0 {
			return i + n + 1
		}
		i += escape + 1 // skips the escaped byte
	}
	return -1
}

// valueEnd returns the offset after the value that begins at i, or -1.
func valueEnd(data []byte, i int) int {
	if i >= len(data) {
		return -1
	}
	switch data[i] {
	case '"':
		return stringEnd(data, i)
	case '{', '[':
		depth := 0
		for i < len(data) {
			switch data[i] {
			case '"':
				if i = stringEnd(data, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	}
	start := i
	for i < len(data) && data[i] != ',' && data[i] != '}' && data[i] != ']' && data[i] != ' ' && data[i] != '\n' && data[i] != '\r' && data[i] != '\t' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// Member is a member of an object, as offsets in the data.
type Member struct {
	Name  []byte // as written, without quotes
	Start int    // offset of the name
	From  int    // offset of the value
	End   int    // offset after the value
}

// Members calls f for each member of the object in data, until f returns false.
func Members(data []byte, f func(m Member) bool) error {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return ErrNotJSON
	}
	i = skipSpace(data, i+1)
	for first := true; ; first = false {
		if i < len(data) && data[i] == '}' && first {
			break
		}
		m := Member{Start: i}
		end := stringEnd(data, i)
		if end < 0 {
			return ErrNotJSON
		}
		m.Name = data[i+1 : end-1]
		if i = skipSpace(data, end); i >= len(data) || data[i] != ':' {
			return ErrNotJSON
		}
		m.From = skipSpace(data, i+1)
		if m.End = valueEnd(data, m.From); m.End < 0 {
			return ErrNotJSON
		}
		if !f(m) {
			return nil
		}
		if i = skipSpace(data, m.End); i >= len(data) || data[i] != ',' && data[i] != '}' {
			return ErrNotJSON
		}
		if data[i] == '}' {
			break
		}
		i = skipSpace(data, i+1)
	}
	if skipSpace(data, i+1) != len(data) {
		return ErrNotJSON
	}
	return nil
}

// Value returns the value of the named member of the object in data, or nil if there is none. It is
// a slice of data.
func Value(data []byte, name string) (value []byte, err error) {
	err = Members(data, func(m Member) bool {
		if string(m.Name) == name {
			value = data[m.From:m.End]
		}
		return value == nil
	})
	return value, err
}

// Frames reads consecutive JSON objects from a stream, one at a time.
type Frames struct {
	from io.ReadCloser
	// buf holds the data that has been read. The data before start has been returned to the caller;
	// the data from start to scanned belongs to the current object.
	buf            []byte
	start, scanned int
	depth          int
	quoted         bool // inside a string
	escaped        bool // the next byte is escaped
	// end is the offset after a complete object that has not been returned completely, or 0.
	end int
	err error
}

// frameRead is the minimum size of the buffer for a read, and frameMax the maximum size of an
// object, in bytes.
const (
	frameRead = 16 << 10
	frameMax  = 32 << 20
)

// NewFrames returns a Frames that reads from r.
func NewFrames(r io.ReadCloser) *Frames { return &Frames{from: r} }

// Close closes the underlying reader.
func (f *Frames) Close() error { return f.from.Close() }

// Read returns one object. If p is too small, it returns io.ErrShortBuffer, and the next Read
// continues with the same object.
func (f *Frames) Read(p []byte) (int, error) {
	for f.end == 0 && !f.whole() {
		if f.err != nil {
			if errors.Is(f.err, io.EOF) && len(bytes.TrimSpace(f.buf[f.start:])) > 0 {
				return 0, io.ErrUnexpectedEOF
			}
			return 0, f.err
		}
		f.more()
	}
	n := copy(p, f.buf[f.start:f.end])
	if f.start += n; f.start < f.end {
		return n, io.ErrShortBuffer
	}
	f.end = 0
	return n, nil
}

// more reads from the stream into buf.
func (f *Frames) more() {
	if f.start > 0 {
		f.buf = f.buf[:copy(f.buf, f.buf[f.start:])]
		f.start, f.scanned = 0, f.scanned-f.start
	}
	if len(f.buf) > frameMax {
		f.err = ErrNotJSON
		return
	}
	f.buf = slices.Grow(f.buf, frameRead)
	n, err := f.from.Read(f.buf[len(f.buf):cap(f.buf)])
	f.buf, f.err = f.buf[:len(f.buf)+n], err
}

// whole reports whether buf contains a complete object, and sets end.
func (f *Frames) whole() bool {
	for ; f.scanned < len(f.buf); f.scanned++ {
		c := f.buf[f.scanned]
		switch {
		case f.escaped:
			f.escaped = false
		case f.quoted:
			if n := bytes.IndexAny(f.buf[f.scanned:], `"\`); n < 0 {
				f.scanned = len(f.buf) - 1
			} else {
				f.scanned += n
				f.escaped = f.buf[f.scanned] == '\\'
				f.quoted = f.escaped
			}
		case c == '"':
			f.quoted = true
		case c == '{' || c == '[':
			f.depth++
		case c == '}' || c == ']':
			if f.depth--; f.depth <= 0 {
				f.scanned++
				f.end, f.depth = f.scanned, 0
				return true
			}
		}
	}
	return false
}
