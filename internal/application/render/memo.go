package render

import (
	"crypto/sha256"
	"sync"
)

// statesMax bounds the cached states of a template. Most templates have a handful: not created, not
// ready, ready.
const statesMax = 1024

// stateMemo caches the results of a status section by its inputs.
type stateMemo struct {
	reads inputUse

	mu    sync.Mutex
	known map[[sha256.Size]byte]knownState
}

type knownState struct {
	state State
	err   error
}

func memoKey(looked, properties []byte) [sha256.Size]byte {
	return sha256.Sum256(append(append(looked[:len(looked):len(looked)], 0), properties...))
}

func (m *stateMemo) get(key [sha256.Size]byte) (knownState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.known[key]
	return k, ok
}

func (m *stateMemo) put(key [sha256.Size]byte, s State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil || len(m.known) >= statesMax {
		m.known = map[[sha256.Size]byte]knownState{}
	}
	m.known[key] = knownState{s, err}
}
