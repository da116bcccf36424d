package batch

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/unsupported"
)

// deviceShares are the resources by which pods request a part of a device, as the device plugins of
// Volcano, HAMi and others name them. Their schedulers also choose the device. Lockstep only counts
// these resources per node, like every extended resource.
var deviceShares = []corev1.ResourceName{
	"volcano.sh/gpu-memory", "volcano.sh/gpu-number",
	"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores",
	"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores",
	"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage",
	"tencent.com/vcuda-core", "tencent.com/vcuda-memory",
	"koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared",
	"elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory",
}

// deviceMarks are annotations by which pods choose the devices of these plugins, or a part of one.
var deviceMarks = []string{
	"volcano.sh/vgpu-mode", "volcano.sh/use-gpuuuid", "volcano.sh/nouse-gpuuuid", "volcano.sh/use-gputype", "volcano.sh/nouse-gputype",
	"nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype",
	"hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy", "gpu-fraction", "gpu-memory",
}

// deviceFields lists the shares of devices that the tasks of a Job request.
func deviceFields() (fields []unsupported.Field[*api.JobSpec]) {
	for _, name := range deviceShares {
		fields = append(fields, unsupported.Field[*api.JobSpec]{
			Path: "spec.tasks[].template: requests for " + string(name) + " (counted per node; no device is chosen)",
			Used: anyTask(func(t *api.TaskSpec) bool { return requests(&t.Template.Spec, name) }),
		})
	}
	for _, mark := range deviceMarks {
		fields = append(fields, unsupported.Field[*api.JobSpec]{
			Path: "spec.tasks[].template.metadata.annotations[" + mark + "]",
			Used: anyTask(func(t *api.TaskSpec) bool { _, set := t.Template.Annotations[mark]; return set }),
		})
	}
	return fields
}

// requests reports whether a container of a pod requests a resource.
func requests(s *corev1.PodSpec, name corev1.ResourceName) bool {
	has := func(c corev1.Container) bool {
		_, limited := c.Resources.Limits[name]
		_, requested := c.Resources.Requests[name]
		return limited || requested
	}
	return slices.ContainsFunc(s.Containers, has) || slices.ContainsFunc(s.InitContainers, has)
}

// deviceClasses reports whether a list limits devices of resource claims: in Volcano's form, their number
// as deviceclass/CLASS, or a capacity of them as DIMENSION.deviceclass/CLASS.
func deviceClasses(list corev1.ResourceList) bool {
	for name := range list {
		domain, _, found := strings.Cut(string(name), "/")
		if found && (domain == "deviceclass" || strings.HasSuffix(domain, ".deviceclass")) {
			return true
		}
	}
	return false
}

const notCounted = " of device classes (devices of resource claims are not counted)"

// queueDeviceFields are the amounts of devices in the spec of a queue.
var queueDeviceFields = []unsupported.Field[*scheduling.Queue]{
	{Path: "spec.capability" + notCounted, Used: func(q *scheduling.Queue) bool { return deviceClasses(q.Spec.Capability) }},
	{Path: "spec.deserved" + notCounted, Used: func(q *scheduling.Queue) bool { return deviceClasses(q.Spec.Deserved) }},
	{Path: "spec.guarantee" + notCounted, Used: func(q *scheduling.Queue) bool { return deviceClasses(q.Spec.Guarantee.Resource) }},
}
