package sysfs

import (
	"path"
	"slices"
	"strconv"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Lists of the CPUs of each kind of core of Intel's hybrid machines: by the performance monitoring
// units, and by the directory of CPU types of some kernels.
const (
	performancePMU = "sys/devices/cpu_core/cpus"
	typesDir       = cpuDir + "/types"
	efficientType  = "intel_atom_" // with a number below typesMax
	typesMax       = 8
)

var efficientPMUs = []string{"sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus"}

// capacityGapPercent separates kinds of cores by their capacity. Cores of one kind differ by a few
// percent, because single ones may run faster; kinds differ by a quarter and more.
const capacityGapPercent = 10

// kinds reads which CPUs are of a smaller kind of core than the largest.
func (r *reader) kinds(online cpuset.Set, p *cputopology.Parts) error {
	small, file, err := r.smallerKinds(online)
	if err == nil {
		err = cut(p, small, file)
	}
	if err != nil {
		return r.tolerate(err, "all cores count as one kind")
	}
	if !online.SubsetOf(small) { // a guest may see cores of the smaller kind only
		p.Efficient = small
	}
	return nil
}

// smallerKinds returns the CPUs of all kinds of cores except the largest, and a file that says so.
func (r *reader) smallerKinds(online cpuset.Set) (small cpuset.Set, file string, err error) {
	for _, pmu := range efficientPMUs {
		cpus, err := r.optionalList(pmu)
		if err != nil {
			return small, pmu, err
		}
		if small = small.Union(cpus.Intersect(online)); !small.IsEmpty() && file == "" {
			file = pmu
		}
	}
	if !small.IsEmpty() {
		return small, file, nil
	}
	if large, err := r.optionalList(performancePMU); err != nil || !large.Intersect(online).IsEmpty() {
		return online.Minus(large), performancePMU, err
	}
	if small, err = r.smallerTypes(online); err != nil || !small.IsEmpty() {
		return small, typesDir, err
	}
	return r.smallerCapacities(online)
}

// smallerTypes reads the directory of CPU types.
func (r *reader) smallerTypes(online cpuset.Set) (small cpuset.Set, err error) {
	for n := range typesMax {
		cpus, err := r.optionalList(path.Join(typesDir, efficientType+strconv.Itoa(n), "cpulist"))
		if err != nil {
			return small, err
		}
		small = small.Union(cpus.Intersect(online))
	}
	return small, nil
}

// smallerCapacities compares cpu_capacity, which is 1024 for the fastest core. Cores whose
// capacities differ by up to capacityGapPercent from one to the next are of one kind.
func (r *reader) smallerCapacities(online cpuset.Set) (small cpuset.Set, file string, err error) {
	type core struct{ id, capacity int }
	var cores []core
	for id := range online.All() {
		file = path.Join(cpuPath(id), "cpu_capacity")
		capacity, ok, err := r.optionalInt(file)
		if err != nil || !ok {
			return small, file, err
		}
		cores = append(cores, core{id, capacity})
	}
	slices.SortStableFunc(cores, func(a, b core) int { return b.capacity - a.capacity })
	largest := 1 // number of cores of the largest kind
	for largest < len(cores) && 100*cores[largest-1].capacity <= (100+capacityGapPercent)*cores[largest].capacity {
		largest++
	}
	var b cpuset.Builder
	for _, c := range cores[largest:] {
		b.Add(c.id)
	}
	return b.Set(), file, nil
}
