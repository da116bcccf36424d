package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/pin"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// compile sets the classes of a pending gang, or its fault if the gang can never be placed. The
// caller holds the lock.
func (s *Scheduler) compile(e *pendingGang) {
	g := e.gang
	e.minMember, e.mates, e.parts, e.minParts = g.MinMember, g.Mates, slices.Clone(g.Parts), g.MinParts
	units, least := 0, 0
	for i, d := range g.Demands {
		var class *place.Class
		var err error
		if p := s.cfg.Guard.Try("scheduler", gangName(g.Key), func() { class, err = s.class(d.Template) }); p != nil {
			err = p
		}
		if err != nil {
			e.fault = err.Error()
			return
		}
		if d.Min > len(d.Units) {
			e.fault = fmt.Sprintf("demand %d needs %d pods and has %d", i, d.Min, len(d.Units))
		}
		left := make([]int, len(d.Units))
		for k := range left {
			left[k] = k
		}
		e.plain, e.left, e.mins = append(e.plain, class), append(e.left, left), append(e.mins, d.Min)
		e.existing = append(e.existing, d.Existing)
		units += len(d.Units)
		least += d.Min
	}
	e.classes = e.plain
	e.need = max(0, units-max(0, g.Surplus), g.MinMember, least)
	if e.minMember > units {
		e.fault = fmt.Sprintf("%d pods are needed and there are %d", e.minMember, units)
	}
	if announced := s.cluster.Dims().Vector(g.Announced); exceeds(announced, e.request()) {
		e.announced = announced
	}
	if e.minMember <= 0 && units > 0 {
		e.minMember = 1 // with no minimum, one pod is worth placing
	}
}

// classesMax bounds the memory of compiled templates. Owners share templates, so the bound is
// rarely reached.
const classesMax = 20000

func (s *Scheduler) class(template *corev1.Pod) (*place.Class, error) {
	if c := s.classes[template]; c != nil {
		return c, nil
	}
	c, err := place.NewClass(s.cluster.Dims(), template)
	if err != nil {
		return nil, fmt.Errorf("pod template: %w", err)
	}
	if c, err = pin.Compile(c); err != nil {
		return nil, fmt.Errorf("pod template: %w", err)
	}
	if len(s.classes) >= classesMax {
		clear(s.classes)
	}
	s.classes[template] = c
	return c, nil
}
