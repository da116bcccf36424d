package controller

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"io"
	"sync"
)

// alike packs texts that resemble each other, as objects of one kind do: the first one is the dictionary of all. A packed
// Deployment takes a tenth of its JSON. The zero value is ready for use.
type alike struct {
	mu         sync.Mutex
	dictionary []byte
	// What packs and unpacks takes much more memory than what it works on, and goes when nobody works.
	writers, readers sync.Pool
}

// dictionaryMax is how far back the format reaches.
const dictionaryMax = 32 << 10

// packLevel is the lowest that uses a dictionary.
const packLevel = 2

// words is the dictionary, which text becomes when there is none.
func (p *alike) words(text []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dictionary == nil {
		p.dictionary = bytes.Clone(text[max(0, len(text)-dictionaryMax):])
	}
	return p.dictionary
}

// pack returns text packed.
func (p *alike) pack(text []byte) []byte {
	var out bytes.Buffer
	out.Write(binary.AppendUvarint(nil, uint64(len(text))))
	w, _ := p.writers.Get().(*flate.Writer)
	if w == nil {
		w, _ = flate.NewWriterDict(nil, packLevel, p.words(text)) // it fails for a wrong level only
	}
	defer p.writers.Put(w)
	w.Reset(&out)
	// A buffer takes everything.
	_, _ = w.Write(text)
	_ = w.Close()
	return bytes.Clone(out.Bytes())
}

// unpack returns the text that pack was given.
func (p *alike) unpack(packed []byte) ([]byte, error) {
	length, n := binary.Uvarint(packed)
	if n <= 0 {
		return nil, io.ErrUnexpectedEOF
	}
	from := bytes.NewReader(packed[n:])
	r, _ := p.readers.Get().(io.ReadCloser)
	if r == nil {
		r = flate.NewReaderDict(from, p.words(nil))
	} else if err := r.(flate.Resetter).Reset(from, p.words(nil)); err != nil {
		return nil, err
	}
	defer p.readers.Put(r)
	text := make([]byte, length)
	_, err := io.ReadFull(r, text)
	return text, err
}
