package scheduler

import (
	"maps"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Gangs wait in lines. The line of a gang is its queue, or the part of it that the gang's user has, if the
// queue is shared. Users are namespaces, or those whose namespaces they are. The ledger knows lines as
// queues.

// line returns the line of a gang.
func (s *Scheduler) line(queue, gang string) string {
	if by := s.shared[queue]; by != "" {
		return share.Part(queue, s.cluster.User(by, namespaceOf(gang)))
	}
	return queue
}

// partOf returns the part of a queue that a user has.
func partOf(q *share.Queue, user string) share.Queue {
	return share.Queue{Name: share.Part(q.Name, user), Parent: q.Name, Of: q.Name, Weight: 1, Closed: q.Closed, FIFO: q.FIFO}
}

// reline records how queues are shared, and moves the waiting gangs whose lines are others by now.
func (s *Scheduler) reline(shared map[string]string) {
	version := s.cluster.UsersVersion()
	if maps.Equal(shared, s.shared) && version == s.usersVersion {
		return
	}
	s.shared, s.usersVersion = shared, version
	for _, key := range slices.Sorted(maps.Keys(s.pending.gangs)) {
		e := s.pending.gangs[key]
		if e.queue.key.line != s.line(e.gang.Queue, key) {
			s.pending.remove(e)
			s.pending.add(e)
		}
	}
}

// partFrom returns the queue and the user of a line that is a part of a queue.
func partFrom(line string) (queue, user string, isPart bool) {
	rest, isPart := strings.CutPrefix(line, share.PartPrefix)
	queue, user, _ = strings.Cut(rest, "/")
	return queue, user, isPart
}

// remembersPart reports whether this is a part of a queue that is still shared, and what it has used still
// counts.
func (s *Scheduler) remembersPart(line string) bool {
	queue, _, isPart := partFrom(line)
	return isPart && s.shared[queue] != "" && s.ledger.Remembers(line)
}

// isStart reports whether a gang is a job that has no pods with nodes yet.
func (s *Scheduler) isStart(e *pendingGang) bool {
	return strings.HasPrefix(e.gang.Key, cluster.JobPrefix) && !s.cluster.RunsIn(e.gang.Queue, e.gang.Key)
}
