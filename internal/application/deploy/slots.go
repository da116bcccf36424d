package deploy

// slots bounds how many requests to other systems are under way at the same time, apart from the
// manager's own writes.
type slots chan struct{}

// outsideMax is that number.
const outsideMax = 16

func NewSlots() *slots {
	s := make(slots, outsideMax)
	return &s
}

// Take takes a slot. It returns false if none is free.
func (s *slots) Take() bool {
	select {
	case *s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Free gives back a slot.
func (s *slots) Free() { <-*s }
