package scheduler

import "lockstep.dev/lockstep/internal/scheduler/pin"

// moves are the moves requested by one call of Move.
type moves struct {
	node  string
	moves []pin.Move
	done  func([]error)
}

// Move gives running pods other CPUs of their node. done is called from the scheduler's goroutine
// and must not block. It receives one error for each move, in order. Nil means that the pod, in the
// model, holds both its old and its new CPUs; the caller must then write the pod, or take the move
// back with cluster.ForgetMoved. No other pod gets either set meanwhile. Any other value says why
// the pod was not moved.
func (s *Scheduler) Move(node string, list []pin.Move, done func([]error)) {
	s.mu.Lock()
	s.moves = append(s.moves, moves{node, list, done})
	s.mu.Unlock()
	s.poke()
}

// move carries out the requested moves. It runs between placements, when the view contains nothing
// that the model does not know.
func (s *Scheduler) move() {
	s.mu.Lock()
	asked := s.moves
	s.moves = nil
	s.mu.Unlock()
	if len(asked) == 0 {
		return
	}
	s.cluster.Refresh(s.view)
	for _, a := range asked {
		errs := make([]error, len(a.moves))
		for i, m := range a.moves {
			errs[i] = s.pinner.Move(s.cluster, a.node, m)
		}
		a.done(errs)
	}
}
