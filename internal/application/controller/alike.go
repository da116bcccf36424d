package controller

import (
	"bytes"
	"sync"

	"github.com/klauspost/compress/s2"
)

// alike packs texts that resemble each other, as objects of one kind do: the first one is the dictionary of all. A packed
// Deployment takes a tenth of its JSON. The format is one that needs next to no memory to pack and unpack. The zero value is
// ready for use.
type alike struct {
	mu         sync.Mutex
	dictionary *s2.Dict
	spare      sync.Pool // of buffers to pack into
}

// words is the dictionary, which text becomes when there is none.
func (p *alike) words(text []byte) *s2.Dict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dictionary == nil {
		words := bytes.Clone(text[max(0, len(text)-s2.MaxDictSize):])
		for len(words) < s2.MinDictSize {
			words = append(words, ' ')
		}
		p.dictionary = s2.MakeDict(words, nil)
	}
	return p.dictionary
}

// pack returns text packed.
func (p *alike) pack(text []byte) []byte {
	buffer, _ := p.spare.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	defer p.spare.Put(buffer)
	*buffer = p.words(text).Encode((*buffer)[:0], text)
	return bytes.Clone(*buffer)
}

// unpack returns the text that pack was given.
func (p *alike) unpack(packed []byte) ([]byte, error) { return p.words(nil).Decode(nil, packed) }
