package rawjson

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// ErrNotJSON says that data is not an object in JSON, or not all of one.
var ErrNotJSON = errors.New("not an object in JSON")

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is the place after the string that begins at i, or -1.
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
		i += escape + 1 // what is escaped is passed over
	}
	return -1
}

// valueEnd is the place after the value that begins at i, or -1.
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

// Member is one of an object's, as places in the data.
type Member struct {
	Name  []byte // as it is written, without its quotes
	Start int    // where the name begins
	From  int    // where the value begins
	End   int    // where the value ends
}

// Members calls f for the members of the object that data is, until f says false.
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

// Value is the member of that name of the object that data is, or nil without one. It is a part of data.
func Value(data []byte, name string) (value []byte, err error) {
	err = Members(data, func(m Member) bool {
		if string(m.Name) == name {
			value = data[m.From:m.End]
		}
		return value == nil
	})
	return value, err
}

// Frames reads objects in JSON that follow one another, one at a time.
type Frames struct {
	from io.ReadCloser
	// buf is what has been read. Handed out of it is what lies before start; of the rest, what lies before scanned belongs to the
	// object that is being read.
	buf            []byte
	start, scanned int
	depth          int
	quoted         bool // within a string
	escaped        bool // the next byte is
	end            int  // of an object that has been read and not been handed out as a whole; 0: there is none
	err            error
}

const (
	frameRead = 16 << 10
	frameMax  = 32 << 20
)

// NewFrames reads from r.
func NewFrames(r io.ReadCloser) *Frames { return &Frames{from: r} }

// Close closes what is read from.
func (f *Frames) Close() error { return f.from.Close() }

// Read hands out one object, and says io.ErrShortBuffer when there is more of it.
func (f *Frames) Read(p []byte) (int, error) {
	for f.end == 0 && !f.whole() {
		if f.err != nil {
			if f.err == io.EOF && len(bytes.TrimSpace(f.buf[f.start:])) > 0 {
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

// more reads on.
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

// whole says whether an object has been read to its end.
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
