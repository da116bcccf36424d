package controlloop

import "context"

// Outcome is how a piece of work has ended.
type Outcome[T any] struct {
	Value T
	Err   error
}

// AwaitAll starts n pieces of work and waits for their outcomes, while another key takes the place
// of this turn. Each piece ends with one call of done, from any goroutine. Pieces that have not
// ended when the context of Run is done have its cause as their error. Like Yield, it may be called
// only in a turn started by Run.
func AwaitAll[K comparable, R, T any](l *Loop[K, R], n int, start func(i int, done func(T, error))) []Outcome[T] {
	type ended struct {
		Outcome[T]
		i int
	}
	answers := make(chan ended, n)
	for i := range n {
		start(i, func(value T, err error) { answers <- ended{Outcome[T]{value, err}, i} })
	}
	out := make([]Outcome[T], n)
	waiting := make(map[int]bool, n)
	for i := range n {
		waiting[i] = true
	}
	l.Yield(func() {
		for len(waiting) > 0 {
			select {
			case a := <-answers:
				out[a.i] = a.Outcome
				delete(waiting, a.i)
			case <-l.ctx.Done():
				for i := range waiting {
					out[i].Err = context.Cause(l.ctx)
				}
				return
			}
		}
	})
	return out
}

// Await is AwaitAll for one piece of work.
func Await[K comparable, R, T any](l *Loop[K, R], start func(done func(T, error))) (T, error) {
	o := AwaitAll(l, 1, func(_ int, done func(T, error)) { start(done) })[0]
	return o.Value, o.Err
}
