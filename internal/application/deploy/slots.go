package deploy

// Slots bounds how many requests to other systems are under way at the same time, apart from the
// manager's own writes.
type Slots chan struct{}

// outsideMax is that number.
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
