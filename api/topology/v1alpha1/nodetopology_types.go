package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CPUList is a set of CPU numbers in the kernel's list format: "0-3,8,128-131".
//
// +kubebuilder:validation:MaxLength=8192
// +kubebuilder:validation:Pattern=`^([0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)?$`
type CPUList string

// ApplyMode is how the agent applies CPU sets to containers.
// +kubebuilder:validation:Enum=NRI;Files;Observe
type ApplyMode string

// The modes.
const (
	ApplyByNRI   ApplyMode = "NRI"     // through the container runtime, before a container starts
	ApplyByFiles ApplyMode = "Files"   // by writing to the containers' cgroups
	ApplyNothing ApplyMode = "Observe" // the agent reports and does not write
)

// The types of conditions.
const (
	// NodeReady is True while the agent applies CPU sets on the node. The agent writes it.
	NodeReady = "Ready"
	// AgentAlive is False if the agent's pod is not ready, or the agent's lease has expired. The
	// manager writes it when it changes. Pods that request CPUs are not placed on such a node.
	AgentAlive = "AgentAlive"
)

// ReasonObserving is the reason of NodeReady if the agent is configured to write nothing. Pods that
// request CPUs are still placed on such a node, so that users can see which CPUs would be chosen.
const ReasonObserving = "Observing"

// NodeTopology describes the processors of the node of the same name, and what the node's agent
// reports.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodetopologies,scope=Cluster,shortName=ntopo
// +kubebuilder:printcolumn:name="CPUS",type=integer,JSONPath=`.spec.counts.cpus`
// +kubebuilder:printcolumn:name="CORES",type=integer,JSONPath=`.spec.counts.cores`
// +kubebuilder:printcolumn:name="L3",type=integer,JSONPath=`.spec.counts.l3`
// +kubebuilder:printcolumn:name="NUMA",type=integer,JSONPath=`.spec.counts.numa`
// +kubebuilder:printcolumn:name="SOCKETS",type=integer,JSONPath=`.spec.counts.sockets`
// +kubebuilder:printcolumn:name="MODE",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="PINNED",type=integer,JSONPath=`.status.pinned`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="ALIVE",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="AgentAlive")].status`
// +kubebuilder:printcolumn:name="REPACK",type=string,priority=1,JSONPath=`.status.repack.phase`
// +kubebuilder:printcolumn:name="KUBELET",type=string,priority=1,JSONPath=`.status.kubelet.cpuManagerPolicy`
// +kubebuilder:printcolumn:name="RESERVED",type=string,priority=1,JSONPath=`.status.reserved`
// +kubebuilder:printcolumn:name="AGENT",type=string,priority=1,JSONPath=`.status.agentVersion`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeTopology struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodeTopologySpec `json:"spec"`
	// Repack requests that the manager moves pinned pods within the node, so that whole L3 domains
	// become free. It is not a part of the spec, which the agent writes. A user who sets it needs
	// the verb "repack" on nodetopologies.
	// +optional
	Repack *RepackRequest `json:"repack,omitempty"`
	// +optional
	Status NodeTopologyStatus `json:"status,omitempty"`
}

// RepackRequest is a request to move pinned pods within a node. It is carried out once for each ID.
type RepackRequest struct {
	// ID identifies the request. An ID that differs from status.repack.id is a new request.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// MovesMax is the maximum number of pods moved; 0 means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MovesMax int32 `json:"movesMax,omitempty"`
	// CostMaxPercent is the maximum cost: the number of CPUs moved for each 100 CPUs freed, where a
	// CPU moved to another NUMA node counts twice. 0 means the default, 400.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	CostMaxPercent int32 `json:"costMaxPercent,omitempty"`
	// StayInNUMA forbids moves to other NUMA nodes.
	// +optional
	StayInNUMA bool `json:"stayInNUMA,omitempty"`
}

// RepackPhase is the phase of a repack.
// +kubebuilder:validation:Enum=Moving;Done;Failed
type RepackPhase string

// The phases of a repack. A repack for which there was nothing to do is Done.
const (
	RepackMoving RepackPhase = "Moving"
	RepackDone   RepackPhase = "Done"
	RepackFailed RepackPhase = "Failed"
)

// RepackStatus is the state of the last repack.
type RepackStatus struct {
	// ID is the ID of the request, or "policy" if the manager's configuration caused the repack.
	// +kubebuilder:validation:MaxLength=64
	ID    string      `json:"id"`
	Phase RepackPhase `json:"phase"`
	// Moves is the number of pods that were moved to other CPUs.
	// +optional
	Moves int32 `json:"moves,omitempty"`
	// Freed lists the L3 domains that became free, each as a CPU list.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Freed []CPUList `json:"freed,omitempty"`
	// Message says why the repack failed, or which part of it was not done.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// Started and Finished are when the repack began and ended. Finished is absent until then.
	// +optional
	Started metav1.Time `json:"started,omitempty,omitzero"`
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
}

// Liveness says how the node's agent shows that it is alive. Exactly one field is set.
type Liveness struct {
	// Pod is the namespace/name of the pod in which the agent runs. The kubelet reports whether the
	// pod is ready, so the agent need not write anything.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Pod string `json:"pod,omitempty"`
	// Lease is the namespace/name of the lease that an agent outside a pod renews.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Lease string `json:"lease,omitempty"`
}

// NodeTopologySpec describes the machine, as sets of CPUs. It changes when the machine changes, for
// example when a CPU goes offline or the firmware is set to other NUMA nodes. For 256 CPUs its size
// is 1 to 2 kB.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self.numa.all(n, size(n.distances) == size(self.numa))",message="numa[*].distances: must have a distance for each NUMA node"
// +kubebuilder:validation:XValidation:rule="self.numa.all(n, self.numa.exists_one(m, m.id == n.id))",message="numa[*].id: must differ among NUMA nodes"
// +kubebuilder:validation:XValidation:rule="self.sockets.all(s, self.sockets.exists_one(t, t.id == s.id))",message="sockets[*].id: must differ among sockets"
type NodeTopologySpec struct {
	// Counts summarizes the other fields for users.
	// +optional
	Counts Counts `json:"counts,omitempty,omitzero"`
	// Cores lists the cores in groups. In a group, the n-th CPUs of all lists are the threads of
	// one core: ["0-63","64-127"] is 64 cores, the first of which has the CPUs 0 and 64.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4096
	Cores []CoreGroup `json:"cores"`
	// Sockets are the processor packages.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	Sockets []Socket `json:"sockets"`
	// Dies lists the CPUs of each die. It is empty if each socket is one die.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Dies []CPUList `json:"dies,omitempty"`
	// NUMA lists the NUMA nodes by ascending ID, including nodes without CPUs.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	NUMA []NUMANode `json:"numa"`
	// L3 lists the last-level caches by size.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	L3 []L3Group `json:"l3,omitempty"`
	// Efficient lists the CPUs of the smaller cores on a machine with two kinds of cores.
	// +optional
	Efficient CPUList `json:"efficient,omitempty"`
	// Offline lists the CPUs that are present and switched off.
	// +optional
	Offline CPUList `json:"offline,omitempty"`
	// Isolated lists the CPUs that are excluded from the kernel's load balancer (isolcpus=). They
	// are not given to pods.
	// +optional
	Isolated CPUList `json:"isolated,omitempty"`
}

// Counts is the numbers of CPUs, cores, L3 domains, NUMA nodes and sockets of a machine.
type Counts struct {
	CPUs    int32 `json:"cpus"` // online
	Cores   int32 `json:"cores"`
	L3      int32 `json:"l3"`
	NUMA    int32 `json:"numa"`
	Sockets int32 `json:"sockets"`
}

// CoreGroup is a number of cores with the same number of threads.
//
// +kubebuilder:validation:MinItems=1
// +kubebuilder:validation:MaxItems=16
type CoreGroup []CPUList

// Socket is one processor package.
type Socket struct {
	// ID is the kernel's number of the package.
	ID   int32   `json:"id"`
	CPUs CPUList `json:"cpus"`
}

// NUMANode is one NUMA node.
type NUMANode struct {
	// ID is the kernel's number of the node.
	// +kubebuilder:validation:Minimum=0
	ID int32 `json:"id"`
	// +optional
	CPUs CPUList `json:"cpus"`
	// Memory is the node's memory in bytes.
	// +kubebuilder:validation:Minimum=0
	Memory int64 `json:"memory"`
	// Distances are the firmware's distances to each NUMA node, in the order of spec.numa. 10 is
	// the distance to the node itself.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=255
	Distances []int32 `json:"distances"`
}

// L3Group lists all last-level caches of one size.
type L3Group struct {
	// Bytes is the size of each cache, in bytes; 0 if unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes,omitempty"`
	// Domains lists the CPUs that share each cache.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Domains []CPUList `json:"domains"`
}

// NodeTopologyStatus is what the node's agent reports. The scheduler gives pods neither the CPUs of
// Reserved nor those of KubeletPins.
type NodeTopologyStatus struct {
	// AgentVersion is the version of the agent that wrote the status.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// Mode is how CPU sets are applied.
	// +optional
	Mode ApplyMode `json:"mode,omitempty"`
	// Cgroups is the version of the cgroup hierarchy with the cpuset controller: "v1" or "v2".
	// +optional
	// +kubebuilder:validation:MaxLength=8
	Cgroups string `json:"cgroups,omitempty"`
	// Reserved lists the CPUs that are kept for the system, by the kubelet's reserved CPUs or by
	// the agent's own setting.
	// +optional
	Reserved CPUList `json:"reserved,omitempty"`
	// Shared lists the CPUs of the shared pool, on which everything runs that is not pinned.
	// +optional
	Shared CPUList `json:"shared,omitempty"`
	// Pinned is the number of containers that have the CPU set of their pod's annotation.
	// +optional
	Pinned int32 `json:"pinned,omitempty"`
	// Moved is the sequence number of the last completed move of a pod to other CPUs. A move is
	// complete when no process is left on the CPUs from which the pod was moved.
	// +optional
	Moved int64 `json:"moved,omitempty"`
	// Liveness says how the agent shows that it is alive. If it is not set, the agent is assumed to
	// be alive.
	// +optional
	Liveness *Liveness `json:"liveness,omitempty"`
	// Repack is the state of the last repack. The manager writes it.
	// +optional
	Repack *RepackStatus `json:"repack,omitempty"`
	// KubeletPins lists the containers that the kubelet's static CPU manager has pinned.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	KubeletPins []KubeletPin `json:"kubeletPins,omitempty"`
	// Kubelet is what the agent knows of the kubelet's own way to choose CPUs; absent if it has found
	// none of the kubelet's files.
	// +optional
	Kubelet *KubeletStatus `json:"kubelet,omitempty"`
	// Problems lists containers that do not have the CPU set that they should have, and what is wrong
	// with the node, at most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Problems []Problem `json:"problems,omitempty"`
	// Conditions has the types Ready, which is True while CPU sets are applied, and AgentAlive,
	// which the manager writes and which is False if the agent is not alive.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubeletPin is a container that the kubelet has pinned.
type KubeletPin struct {
	// PodUID is the UID of the container's pod.
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID"`
	// +kubebuilder:validation:MaxLength=63
	Container string  `json:"container"`
	CPUs      CPUList `json:"cpus"`
}

// PinsPolicy says what becomes of pods that both the kubelet's static CPU manager and Lockstep would
// pin.
// +kubebuilder:validation:Enum=Respected;TakenOver
type PinsPolicy string

// The policies.
const (
	// PinsRespected means that the kubelet's pins stand. Pods that it would pin are not placed here if
	// they request CPUs.
	PinsRespected PinsPolicy = "Respected"
	// PinsTakenOver means that pods with CPUs in their annotations have these.
	PinsTakenOver PinsPolicy = "TakenOver"
)

// KubeletStatus is what the agent knows of a kubelet.
type KubeletStatus struct {
	// CPUManagerPolicy is "static" if the kubelet pins containers, else "none".
	// +kubebuilder:validation:MaxLength=64
	CPUManagerPolicy string `json:"cpuManagerPolicy"`
	// Options are the options of the static policy, each as NAME=VALUE.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Options []string `json:"options,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TopologyManagerPolicy string `json:"topologyManagerPolicy,omitempty"`
	// Pins is set for the static policy.
	// +optional
	Pins PinsPolicy `json:"pins,omitempty"`
}

// Problem is a container that does not have the CPU set that it should have, or a problem of the node.
type Problem struct {
	// Pod is the namespace/name of the container's pod; empty for a problem of the node.
	// +kubebuilder:validation:MaxLength=320
	Pod string `json:"pod"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`
	// Message describes the problem. It stays the same as long as the cause does.
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message"`
}

// NodeTopologyList is a list of NodeTopologies.
//
// +kubebuilder:object:root=true
type NodeTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeTopology `json:"items"`
}
