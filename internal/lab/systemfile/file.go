package systemfile

import (
	"regexp"
	"text/template"
	"time"
)

// File describes a system under test.
type File struct {
	// Name is the name of the system in reports.
	Name string `yaml:"name"`
	// ControlPlane says how a fresh control plane is started for the system.
	ControlPlane ControlPlane `yaml:"controlPlane"`
	// Manifests are files and folders with objects to create before the processes start.
	Manifests []string  `yaml:"manifests"`
	Processes []Process `yaml:"processes"`
	// Users are users of the API server whose writes are the system's; a * at the end stands for
	// any rest. The users of Processes, and Kubernetes' own controllers and scheduler, always are.
	Users  []string `yaml:"users"`
	Load   Load     `yaml:"load"`
	Pods   Pods     `yaml:"pods"`
	Status Status   `yaml:"status"`
	Floor  Floor    `yaml:"floor"`
	// Clients are the client limits of the system's programs, and Settings further settings. Both
	// are for the report only.
	Clients  []Client          `yaml:"clients"`
	Settings map[string]string `yaml:"settings"`
	// Parameters are values that a measurement may change, by name. ${PARAM_name} stands for the
	// value in the arguments and environments of processes and components, and in Clients.
	Parameters map[string]string `yaml:"parameters"`

	job  *template.Template
	pods *regexp.Regexp
}

// ControlPlane configures a fresh control plane.
type ControlPlane struct {
	// Scheduler starts kube-scheduler, too.
	Scheduler bool `yaml:"scheduler"`
	// Args are additional flags, by the component that gets them.
	Args map[string][]string `yaml:"args"`
}

// Process is a program of the system.
type Process struct {
	Name string `yaml:"name"`
	// Command is the program and its arguments. A path with a slash is relative to the file.
	Command []string          `yaml:"command"`
	Env     map[string]string `yaml:"env"`
	// Ports are names of further free ports, each available as ${PORT_name}.
	Ports []string `yaml:"ports"`
	Ready Ready    `yaml:"ready"`
	// Metrics is the address of the process's metrics in Prometheus' text format.
	Metrics string `yaml:"metrics"`
}

// Ready says how to see that a process is ready: it answers at URL with 200, and a line of its log
// matches the regular expression Log.
type Ready struct {
	URL string `yaml:"url"`
	Log string `yaml:"log"`
}

// Load is the load for the system.
type Load struct {
	// Job is the template of the manifest of one job.
	Job string `yaml:"job"`
	// Resource is the plural name of the job's kind. Default: as its
	// CustomResourceDefinition among Manifests says, else guessed from the kind.
	Resource string `yaml:"resource"`
	// Gangs says that the system can hold back pods until a whole gang fits.
	Gangs bool `yaml:"gangs"`
}

// Pods says which pods are of the load.
type Pods struct {
	// Name is a regular expression with the group job, the name of the pod's job, and possibly the
	// group index. Pods whose names do not match are not of the load.
	Name string `yaml:"name"`
}

// Status has JSONPath expressions for the counts in a job's status. What is empty is not checked.
type Status struct {
	Running   string `yaml:"running"`
	Succeeded string `yaml:"succeeded"`
	Failed    string `yaml:"failed"`
	Message   string `yaml:"message"`
	// SettleTime is the longest time after which the system writes a status.
	SettleTime time.Duration `yaml:"settleTime"`
}

// Floor says how to keep the system away from the objects of the floor.
type Floor struct {
	// Stop are the components and processes to stop.
	Stop []string `yaml:"stop"`
}

// Client is the client limit of a program: numbers, or words such as unlimited.
type Client struct {
	Name  string `yaml:"name" json:"name"`
	QPS   string `yaml:"qps" json:"qps"`
	Burst string `yaml:"burst" json:"burst"`
}

// Job is the data of the template of a job.
type Job struct {
	Namespace, Name string
	// Index counts the jobs of a load from 0.
	Index, Pods int
	// Gang is true if all pods of the job should get nodes together, and Min is the least number of
	// them: Pods for a gang, else 1.
	Gang bool
	Min  int
	// PodSpec is the spec of each pod, as JSON, which is YAML too.
	PodSpec string
	// Floor is true for a job on which no controller should act.
	Floor bool
	// Parameters are the values of the file's parameters.
	Parameters map[string]string
}
