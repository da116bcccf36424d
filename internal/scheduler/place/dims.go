package place

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Defaults for containers without a request, used in scores and never in filters, as in the
// kube-scheduler: pods without requests still spread, and pods with requests do not treat them as
// free.
const (
	defaultMilliCPU    = 100
	defaultMemoryBytes = 200 << 20
)

// Dims numbers resource names. It only ever grows, so an earlier Vector stays valid. It is safe for
// concurrent use.
type Dims struct {
	mu    sync.RWMutex
	names []corev1.ResourceName
	index map[corev1.ResourceName]int
}

// NewDims returns a Dims with the dimensions that every cluster has: cpu, memory, ephemeral storage
// and pods.
func NewDims() *Dims {
	d := &Dims{index: map[corev1.ResourceName]int{}}
	for _, name := range []corev1.ResourceName{
		CPU: corev1.ResourceCPU, Memory: corev1.ResourceMemory,
		EphemeralStorage: corev1.ResourceEphemeralStorage, Pods: corev1.ResourcePods,
	} {
		d.intern(name)
	}
	return d
}

// Len returns the number of dimensions known so far.
func (d *Dims) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.names)
}

// Name returns the resource of a dimension.
func (d *Dims) Name(dim int) corev1.ResourceName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.names[dim]
}

// Lookup returns a resource's dimension without adding it.
func (d *Dims) Lookup(name corev1.ResourceName) (dim int, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	dim, ok = d.index[name]
	return dim, ok
}

func (d *Dims) intern(name corev1.ResourceName) int {
	if dim, ok := d.Lookup(name); ok {
		return dim
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if dim, ok := d.index[name]; ok {
		return dim
	}
	d.names = append(d.names, name)
	d.index[name] = len(d.names) - 1
	return len(d.names) - 1
}

// Vector converts a resource list: a node's allocatable, a queue's capability or any other. It
// omits names that the kube-scheduler does not schedule by (for example "storage", which belongs to
// volumes).
func (d *Dims) Vector(list corev1.ResourceList) Vector {
	v := make(Vector, d.Len())
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		if schedulable(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names) // new names get the same numbers in every run
	for _, name := range names {
		dim := d.intern(name)
		for len(v) <= dim {
			v = append(v, 0)
		}
		q := list[name]
		if dim == CPU {
			v[dim] = q.MilliValue()
		} else {
			v[dim] = q.Value()
		}
	}
	return v
}

// PodVector returns the amounts that a pod takes of its node: containers, init containers,
// restartable init containers, pod-level requests and overhead, combined by the API's own rule,
// plus one pod. For a running pod it uses the actuated resources of the pod's status (in-place
// resize). The second result is for scores only: containers without a request count with a default.
func (d *Dims) PodVector(pod *corev1.Pod) (request, nonZero Vector) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true}
	list := resourcehelper.PodRequests(pod, opts)
	request = d.Vector(list)
	request[Pods] = 1

	opts.NonMissingContainerRequests = nonMissing(pod, list)
	nonZero = request
	if lacksRequests(pod, opts.NonMissingContainerRequests) {
		nonZero = d.Vector(resourcehelper.PodRequests(pod, opts))
		nonZero[Pods] = 1
	}
	return request, nonZero
}

// nonMissing returns the defaults that apply to a pod's containers. A request at pod level replaces
// those of the containers, so a resource with a pod-level request needs no default.
func nonMissing(pod *corev1.Pod, requests corev1.ResourceList) corev1.ResourceList {
	defaults := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(defaultMemoryBytes, resource.DecimalSI),
	}
	if resourcehelper.IsPodLevelRequestsSet(pod) {
		for name := range defaults {
			if _, ok := requests[name]; ok {
				delete(defaults, name)
			}
		}
	}
	return defaults
}

// lacksRequests reports whether a container of the pod lacks a request for one of the defaults. It
// saves the second computation for the usual pod, whose containers all have requests.
func lacksRequests(pod *corev1.Pod, defaults corev1.ResourceList) bool {
	for name := range defaults {
		for i := range pod.Spec.Containers {
			if _, ok := pod.Spec.Containers[i].Resources.Requests[name]; !ok {
				return true
			}
		}
		for i := range pod.Spec.InitContainers {
			if _, ok := pod.Spec.InitContainers[i].Resources.Requests[name]; !ok {
				return true
			}
		}
	}
	return false
}

// List converts a vector to a resource list, omitting zeros.
func (d *Dims) List(v Vector) corev1.ResourceList {
	list := corev1.ResourceList{}
	for dim, amount := range v {
		if amount != 0 {
			list[d.Name(dim)] = d.Quantity(dim, amount)
		}
	}
	return list
}

// Quantity converts an amount of one dimension to a quantity with the unit of that dimension.
func (d *Dims) Quantity(dim int, amount int64) resource.Quantity {
	return quantity(d.Name(dim), amount)
}

func quantity(name corev1.ResourceName, amount int64) resource.Quantity {
	switch {
	case name == corev1.ResourceCPU:
		return *resource.NewMilliQuantity(amount, resource.DecimalSI)
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return *resource.NewQuantity(amount, resource.BinarySI)
	}
	return *resource.NewQuantity(amount, resource.DecimalSI)
}

// schedulable reports whether a resource name counts in placement: the four basic ones, and those
// that the kube-scheduler calls scalar resources (extended resources, huge pages, attachable
// volumes).
func schedulable(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return true
	}
	s := string(name)
	if strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix) {
		return true
	}
	return strings.Contains(s, "/") && !strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix)
}

// At returns the amount in a dimension; zero beyond the end of the vector.
func (v Vector) At(dim int) int64 {
	if dim < len(v) {
		return v[dim]
	}
	return 0
}

// Max returns the larger of the two amounts in each dimension.
func (v Vector) Max(w Vector) Vector {
	most := make(Vector, max(len(v), len(w)))
	for dim := range most {
		most[dim] = max(v.At(dim), w.At(dim))
	}
	return most
}

// Plus returns v + times × w.
func (v Vector) Plus(w Vector, times int64) Vector {
	sum := make(Vector, max(len(v), len(w)))
	copy(sum, v)
	for dim, amount := range w {
		sum[dim] += times * amount
	}
	return sum
}
