package apiwriter

// queue holds the writes that wait for their turn. Classes are served in order, except that a lower
// class that has been passed over maxPassed times in a row is served next. Within a class, owners
// take turns of up to ownerBatch. The writes of one owner are first in, first out. Every operation
// is O(1) in the number of writes and owners.
type queue struct {
	classes [numClasses]classQueue
	len     int
}

const numClasses = int(ClassEvent) + 1

// ownerBatch is the number of writes of one owner before the next owner has its turn. Turns of one
// write would be as fair, but a hundred gangs written at the same time would all be complete only
// at the end instead of one after the other. ownerBatch is small enough that a single pod behind a
// gang of thousands waits about a tenth of a second.
const ownerBatch = 64

// maxPassed is the guaranteed share of each class: at least one write in maxPassed+1 while the
// class has any. Pods need no guarantee, as no class goes before them. Statuses and events get
// little, because waiting makes them coalesce.
var maxPassed = [numClasses]int{ClassPods: 0, ClassDelete: 4, ClassUrgent: 9, ClassStart: 19, ClassStatus: 19,
	ClassEvent: 49}

type classQueue struct {
	owners map[string]*ownerQueue
	turn   *ownerQueue // the owner in the ring whose turn it is; nil when empty
	len    int
	passed int // times a higher class was served while this one waited
}

// ownerQueue is the list of one owner's writes, and an element of the ring of owners with writes.
type ownerQueue struct {
	name       string
	head, tail *write
	taken      int // writes taken in the current turn
	next, prev *ownerQueue
}

func (q *queue) push(w *write)      { q.insert(w, false) }
func (q *queue) pushFront(w *write) { q.insert(w, true) }

func (q *queue) insert(w *write, front bool) {
	c := &q.classes[w.class]
	o := c.owners[w.owner]
	if o == nil {
		if c.owners == nil {
			c.owners = make(map[string]*ownerQueue)
		}
		o = &ownerQueue{name: w.owner}
		c.owners[w.owner] = o
		if c.turn == nil {
			o.next, o.prev = o, o
			c.turn = o
		} else { // the last in the ring
			o.next, o.prev = c.turn, c.turn.prev
			o.prev.next, o.next.prev = o, o
		}
	}
	switch {
	case o.head == nil:
		w.next = nil
		o.head, o.tail = w, w
	case front:
		w.next = o.head
		o.head = w
	default:
		w.next = nil
		o.tail.next = w
		o.tail = w
	}
	c.len++
	q.len++
}

// pop removes and returns the next write of the classes up to last, or nil if there is none.
func (q *queue) pop(last Class) *write {
	first := -1
	for i := range q.classes[:last+1] {
		c := &q.classes[i]
		if c.len == 0 {
			continue
		}
		if first < 0 {
			first = i
			continue
		}
		if c.passed >= maxPassed[i] {
			first = i
			break
		}
	}
	if first < 0 {
		return nil
	}
	for i := first + 1; i < numClasses; i++ {
		if q.classes[i].len > 0 {
			q.classes[i].passed++
		}
	}
	c := &q.classes[first]
	c.passed = 0

	o := c.turn
	w := o.head
	o.head = w.next
	w.next = nil
	if o.taken++; o.taken >= ownerBatch || o.head == nil {
		o.taken = 0
		c.turn = o.next
	}
	if o.head == nil {
		o.tail = nil
		delete(c.owners, o.name)
		if o.next == o {
			c.turn = nil
		} else {
			o.prev.next, o.next.prev = o.next, o.prev
		}
	}
	c.len--
	q.len--
	return w
}

// assertConsistent panics if the counts, the rings and the lists disagree. For tests.
func (q *queue) assertConsistent() {
	total := 0
	for i := range q.classes {
		c := &q.classes[i]
		n, owners := 0, 0
		for o := c.turn; o != nil; o = o.next {
			if c.owners[o.name] != o || o.next.prev != o || o.prev.next != o || o.head == nil {
				panic("the ring of owners is broken at " + o.name)
			}
			owners++
			last := o.head
			for w := o.head; w != nil; w = w.next {
				n++
				last = w
			}
			if o.tail != last {
				panic("the tail of " + o.name + " is not its last write")
			}
			if o.next == c.turn {
				break
			}
		}
		if n != c.len || owners != len(c.owners) {
			panic("a class has lost count of its writes or owners")
		}
		total += n
	}
	if total != q.len {
		panic("the queue has lost count of its writes")
	}
}
