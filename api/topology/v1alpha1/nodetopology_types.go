package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CPUList is a set of CPU numbers in the kernel's list format: "0-3,8,128-131".
//
// +kubebuilder:validation:MaxLength=8192
// +kubebuilder:validation:Pattern=`^([0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)?$`
type CPUList string

// ApplyMode is how the agent brings CPU sets to containers.
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
	// AgentAlive is False when the agent has not been heard of for a while: its pod is not ready, or its lease has run out.
	// The manager writes it, when that changes. Pods that ask for CPUs do not go to such a node.
	AgentAlive = "AgentAlive"
)

// ReasonObserving is the reason of NodeReady when the agent was told to write nothing. Pods that ask for CPUs go to such a
// node all the same: for looking at what would be chosen.
const ReasonObserving = "Observing"

// NodeTopology says what the processors of the node of the same name look like, and what the node's agent reports.
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
// +kubebuilder:printcolumn:name="RESERVED",type=string,priority=1,JSONPath=`.status.reserved`
// +kubebuilder:printcolumn:name="AGENT",type=string,priority=1,JSONPath=`.status.agentVersion`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeTopology struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodeTopologySpec `json:"spec"`
	// Repack asks the manager to move pinned pods within the node, so that whole L3 domains become free. It is not part of
	// the spec, which is the agent's; whoever sets it needs the verb "repack" on nodetopologies.
	// +optional
	Repack *RepackRequest `json:"repack,omitempty"`
	// +optional
	Status NodeTopologyStatus `json:"status,omitempty"`
}

// RepackRequest asks for pinned pods to be moved within a node. It is carried out once for each ID.
type RepackRequest struct {
	// ID tells requests apart: another than status.repack.id is a new one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// MovesMax is the largest number of pods moved; 0 is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MovesMax int32 `json:"movesMax,omitempty"`
	// CostMaxPercent is the largest cost, in CPUs moved for each 100 CPUs freed, where a CPU moved to another NUMA node
	// counts twice; 0 is the default, 400.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	CostMaxPercent int32 `json:"costMaxPercent,omitempty"`
	// StayInNUMA forbids moves to other NUMA nodes.
	// +optional
	StayInNUMA bool `json:"stayInNUMA,omitempty"`
}

// RepackPhase is how far a repack has come.
// +kubebuilder:validation:Enum=Moving;Done;Failed
type RepackPhase string

// The phases. Done is also when there was nothing to win.
const (
	RepackMoving RepackPhase = "Moving"
	RepackDone   RepackPhase = "Done"
	RepackFailed RepackPhase = "Failed"
)

// RepackStatus is what became of the last repack.
type RepackStatus struct {
	// ID is that of the request, or "policy" for moves that the manager made by its own configuration.
	// +kubebuilder:validation:MaxLength=64
	ID    string      `json:"id"`
	Phase RepackPhase `json:"phase"`
	// Moves is how many pods have other CPUs now.
	// +optional
	Moves int32 `json:"moves,omitempty"`
	// Freed are the L3 domains that became free by it, each as a CPU list.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Freed []CPUList `json:"freed,omitempty"`
	// Message says why it failed, or what was not done.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// Started and Finished are when; Finished is absent while it is going on.
	// +optional
	Started metav1.Time `json:"started,omitempty,omitzero"`
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
}

// Liveness says how the node's agent shows that it is there. Exactly one field is set.
type Liveness struct {
	// Pod is namespace/name of the pod that the agent runs in: its kubelet says whether it is ready, which costs no write
	// of the agent's.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Pod string `json:"pod,omitempty"`
	// Lease is namespace/name of the lease that an agent renews which runs in no pod.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Lease string `json:"lease,omitempty"`
}

// NodeTopologySpec is the machine, as sets of CPUs. It changes when the machine does: a CPU goes off line, the firmware
// draws NUMA nodes anew. 256 CPUs take 1 to 2 kB.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self.numa.all(n, size(n.distances) == size(self.numa))",message="numa[*].distances: must have a distance for each NUMA node"
// +kubebuilder:validation:XValidation:rule="self.numa.all(n, self.numa.exists_one(m, m.id == n.id))",message="numa[*].id: must differ among NUMA nodes"
// +kubebuilder:validation:XValidation:rule="self.sockets.all(s, self.sockets.exists_one(t, t.id == s.id))",message="sockets[*].id: must differ among sockets"
type NodeTopologySpec struct {
	// Counts sums up the rest, for people.
	// +optional
	Counts Counts `json:"counts,omitempty,omitzero"`
	// Cores lists the cores in groups: in each, the n-th CPUs of all lists are the threads of one core. ["0-63","64-127"]
	// is 64 cores, the first of CPUs 0 and 64.
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
	// Dies lists the CPUs of each die; empty where each socket is one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Dies []CPUList `json:"dies,omitempty"`
	// NUMA lists the memory nodes by ascending id, those without CPUs included.
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
	// Efficient are the CPUs of the smaller kind of core on a machine with two kinds.
	// +optional
	Efficient CPUList `json:"efficient,omitempty"`
	// Offline CPUs are present and switched off.
	// +optional
	Offline CPUList `json:"offline,omitempty"`
	// Isolated CPUs are kept from the kernel's load balancer (isolcpus=) and are not given out.
	// +optional
	Isolated CPUList `json:"isolated,omitempty"`
}

// Counts is how many of each a machine has.
type Counts struct {
	CPUs    int32 `json:"cpus"` // online
	Cores   int32 `json:"cores"`
	L3      int32 `json:"l3"`
	NUMA    int32 `json:"numa"`
	Sockets int32 `json:"sockets"`
}

// CoreGroup is a number of cores with equally many threads.
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

// NUMANode is one memory node.
type NUMANode struct {
	// ID is the kernel's number of the node.
	// +kubebuilder:validation:Minimum=0
	ID int32 `json:"id"`
	// +optional
	CPUs CPUList `json:"cpus"`
	// Memory is the node's memory in bytes.
	// +kubebuilder:validation:Minimum=0
	Memory int64 `json:"memory"`
	// Distances are the firmware's distances to each NUMA node, in the order of the list; 10 is local.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=255
	Distances []int32 `json:"distances"`
}

// L3Group is all last-level caches of one size.
type L3Group struct {
	// Bytes is the size of each cache; 0 if unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes,omitempty"`
	// Domains lists the CPUs that share each cache.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Domains []CPUList `json:"domains"`
}

// NodeTopologyStatus is what the node's agent reports. The scheduler gives out neither Reserved CPUs nor those of
// KubeletPins.
type NodeTopologyStatus struct {
	// AgentVersion is the version of the agent that wrote this.
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
	// Reserved CPUs are kept for the system: by the kubelet's reserved CPUs, or by the agent's own setting.
	// +optional
	Reserved CPUList `json:"reserved,omitempty"`
	// Shared are the CPUs on which everything runs that is not pinned.
	// +optional
	Shared CPUList `json:"shared,omitempty"`
	// Pinned is how many containers have the CPU set that their pod's annotation says.
	// +optional
	Pinned int32 `json:"pinned,omitempty"`
	// Moved is the number of the last move of a pod to other CPUs that is complete: no process is left on the CPUs that
	// it was moved away from.
	// +optional
	Moved int64 `json:"moved,omitempty"`
	// Liveness says how the agent shows that it is there. Without it, it is taken to be.
	// +optional
	Liveness *Liveness `json:"liveness,omitempty"`
	// Repack is what became of the last repack. The manager writes it.
	// +optional
	Repack *RepackStatus `json:"repack,omitempty"`
	// KubeletPins are the containers that the kubelet's own static CPU manager has pinned.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	KubeletPins []KubeletPin `json:"kubeletPins,omitempty"`
	// Problems are containers whose CPU set is not what it should be. At most 16 are listed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Problems []Problem `json:"problems,omitempty"`
	// Conditions: Ready says whether CPU sets are being applied, and if not, why; AgentAlive, which the manager writes,
	// whether the agent is there.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubeletPin is a container that the kubelet has pinned by itself.
type KubeletPin struct {
	// PodUID is the pod's uid.
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID"`
	// +kubebuilder:validation:MaxLength=63
	Container string  `json:"container"`
	CPUs      CPUList `json:"cpus"`
}

// Problem is a container whose CPU set is not what it should be.
type Problem struct {
	// Pod is namespace/name.
	// +kubebuilder:validation:MaxLength=320
	Pod string `json:"pod"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container,omitempty"`
	// Message says what is wrong. It does not change while the cause is the same.
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
