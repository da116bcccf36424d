package pin

import (
	"fmt"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// Idle returns the CPUs of a node that no pod holds; ok is false if the node is unknown.
func (p *Pinner) Idle(node string) (cpuset.Set, bool) {
	slot, known := p.slots[node]
	if !known {
		return cpuset.Set{}, false
	}
	return p.nodes[slot].Idle(), true
}

// AssertConsistent compares the state of every node with the same state computed anew. It is for
// tests and simulations.
func (p *Pinner) AssertConsistent() error {
	if len(p.nodes) != len(p.machines) || len(p.nodes) != len(p.slots) {
		return fmt.Errorf("pin: %d nodes, %d machines, %d slots", len(p.nodes), len(p.machines), len(p.slots))
	}
	for name, slot := range p.slots {
		n, m := p.nodes[slot], &p.machines[slot]
		if n.Name != name {
			return fmt.Errorf("pin: node %s has the slot of %s", n.Name, name)
		}
		if index, ok := p.view.Index(name); ok != (m.index >= 0) || ok && index != m.index {
			return fmt.Errorf("pin: node %s is at %d of the view, not at %d", name, index, m.index)
		}
		if m.index >= 0 && p.slotOf[m.index] != int32(slot+1) {
			return fmt.Errorf("pin: node %s has slot %d, index %d has %d", name, slot, m.index, p.slotOf[m.index]-1)
		}
		var pods []reservation.Pod
		for key, value := range m.given {
			result, err := request.ParseResult(value)
			if err != nil {
				return fmt.Errorf("pin: pod %s on node %s: %w", key, name, err)
			}
			pods = append(pods, reservation.Pod{Key: key, Result: result.Settled(m.Moved)})
		}
		fresh := reservation.Replay(name, m.Layout, m.Pins, pods)
		if !m.contested && (!fresh.Node.Idle().Equal(n.Idle()) || len(fresh.Node.Pods()) != len(n.Pods()) ||
			len(fresh.Problems) > 0) {
			return fmt.Errorf("pin: node %s has %s idle and %d holders, not %s and %d: %v", name, n.Idle(), len(n.Pods()),
				fresh.Node.Idle(), len(fresh.Node.Pods()), fresh.Problems)
		}
	}
	return nil
}
