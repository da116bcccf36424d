package share

// Element is an element of a Heap.
type Element[T any] interface {
	// Before reports whether the element comes before another one.
	Before(T) bool
	// Position returns where the element's position in its heap is kept.
	Position() *int
}

// Heap holds elements, the next one first, for package container/heap. It implements
// heap.Interface.
type Heap[T Element[T]] []T

func (h Heap[T]) Len() int           { return len(h) }
func (h Heap[T]) Less(i, j int) bool { return h[i].Before(h[j]) }

func (h Heap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].Position(), *h[j].Position() = i, j
}

// Push implements heap.Interface.
func (h *Heap[T]) Push(x any) {
	e := x.(T)
	*e.Position() = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *Heap[T]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	return e
}
