package evict

import (
	"math"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// view is a node as it would be without some of its pods, as pods of one class see it. Looking at
// it changes nothing, so it costs much less than to lift the pods and to put them back.
type view struct {
	o     *occupancy
	class *fits
	free  []int64 // by need of the class
	ports int     // number of host ports in use that the class wants
}

// look makes it a view of a node as it is.
func (v *view) look(i int32) {
	v.free = v.free[:0]
	base := int(i) * v.o.width
	for _, n := range v.class.needs {
		v.free = append(v.free, v.o.allocatable[base+n.dim]-v.o.used[base+n.dim])
	}
	v.ports = 0
	if len(v.class.class.Ports) > 0 {
		for port, pods := range v.o.list[i].ports {
			v.ports += pods * v.wants(port)
		}
	}
}

// wants returns how many ports of the class conflict with a port.
func (v *view) wants(port place.HostPort) (n int) {
	for _, p := range v.class.class.Ports {
		if (place.PortSet{port: 1}).Conflicts(p) {
			n++
		}
	}
	return n
}

// without removes a pod (times = 1), or returns it (times = -1).
func (v *view) without(p *pod, times int64) {
	for k, n := range v.class.needs {
		v.free[k] += times * p.request.At(n.dim)
	}
	if len(v.class.class.Ports) > 0 {
		for _, port := range p.Ports {
			v.ports -= int(times) * v.wants(port)
		}
	}
}

// takes reports whether a number of pods of the class fit.
func (v *view) takes(pods int64) bool {
	if len(v.class.class.Ports) > 0 && (v.ports > 0 || pods > 1) {
		return false
	}
	for k, n := range v.class.needs {
		if v.free[k] < n.amount*pods {
			return false
		}
	}
	return true
}

// fit returns how many pods of the class fit.
func (v *view) fit() int64 {
	if !v.takes(1) {
		return 0
	}
	fit := int64(math.MaxInt32)
	for k, n := range v.class.needs {
		fit = min(fit, v.free[k]/n.amount)
	}
	if len(v.class.class.Ports) > 0 {
		fit = 1
	}
	return fit
}

// gain returns how many more pods of the class fit if a possible victim leaves.
func (v *view) gain(f *Search, x ref) (n int64) {
	if x >= 0 {
		return v.gainOn(f.nodes.pods[x].node, f, []int32{int32(x)})
	}
	pods := f.gangs[^x].pods // sorted by node
	for from := 0; from < len(pods); {
		to, i := from+1, f.nodes.pods[pods[from]].node
		for to < len(pods) && f.nodes.pods[pods[to]].node == i {
			to++
		}
		n += v.gainOn(i, f, pods[from:to])
		from = to
	}
	return n
}

// gainOn is gain for pods that are on one node.
func (v *view) gainOn(i int32, f *Search, pods []int32) int64 {
	if !v.class.eligible[i] {
		return 0
	}
	v.look(i)
	for _, id := range pods {
		if p := &f.nodes.pods[id]; !p.lifted {
			v.without(p, 1)
		}
	}
	before := int64(v.class.fit[i])
	if !v.takes(before + 1) {
		return 0
	}
	return v.fit() - before
}
