package deploy

// Slots bounds how many requests to other systems, apart from the manager's own writes, are under
// way at the same time.
type Slots chan struct{}

// outsideMax is the number of slots.
const outsideMax = 16

// NewSlots returns free slots.
func NewSlots() Slots { return make(Slots, outsideMax) }

// Take takes a slot. It returns false if none is free.
func (s Slots) Take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Free gives back a slot.
func (s Slots) Free() { <-s }
