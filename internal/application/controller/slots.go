package controller

// slots bounds how many requests to other systems are under way at the same time, apart from the
// manager's own writes.
type slots chan struct{}

// outsideMax is that number.
const outsideMax = 16

func newSlots() *slots {
	s := make(slots, outsideMax)
	return &s
}

// take takes a slot. It returns false if none is free.
func (s *slots) take() bool {
	select {
	case *s <- struct{}{}:
		return true
	default:
		return false
	}
}

// free gives back a slot.
func (s *slots) free() { <-*s }
