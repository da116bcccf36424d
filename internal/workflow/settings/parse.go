package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// ConfigMap is the usual name of the ConfigMap.
const ConfigMap = "workflow-controller-configmap"

// wholeKey is the key of a ConfigMap that has the whole configuration as one text.
const wholeKey = "config"

// Settings is a configuration of the workflow controller. The zero value configures nothing. It
// must not be modified.
type Settings struct {
	// Refused explains why no configuration is in force although there is one: it cannot be parsed,
	// and no earlier one is known. No new workflow begins then.
	Refused string
	// From names the ConfigMap, in messages. Good is true if the ConfigMap was parsed.
	From string
	Good bool

	// InstanceID is the value of the label wf.LabelInstanceID of the workflows to run; "" means
	// those without the label.
	InstanceID string
	// Parallelism is the number of workflows that run at a time, NamespaceParallelism that of each
	// namespace; 0 means any number.
	Parallelism, NamespaceParallelism int
	// Defaults has the labels, annotations and spec of workflows that do not say otherwise.
	Defaults *Defaults
	// Restriction limits the specs of workflows.
	Restriction Restriction
	// Retention limits the numbers of finished workflows.
	Retention Retention
	// LogSpecs says of which pods the specs are logged.
	LogSpecs LogSpecs
	// Repository is for artifacts of workflows whose namespace, and Lockstep's, have none.
	// RepositoryError says why it cannot be used.
	Repository      *pods.Repository
	RepositoryError error
	// MainContainer has the defaults of main containers, and Executor those of containers that
	// Lockstep adds to pods.
	MainContainer, Executor *corev1.Container
	// Images are the commands of images, by image.
	Images map[string]pods.Entrypoint
	// PodGCGrace is the grace period of pods that are deleted; nil: their own. PodGCDelay is the
	// default of podGC.deleteDelayDuration; nil: that of Lockstep.
	PodGCGrace *int64
	PodGCDelay *time.Duration
	// WorkflowEvents and NodeEvents say whether events are written; nil leaves it to the manager's
	// flags.
	WorkflowEvents, NodeEvents *bool
	// Persistence is the database for finished workflows; nil if there is none.
	Persistence *Persistence
	// Synchronization is the database of locks; nil if there is none.
	Synchronization *Synchronization
	// Unused are the keys that are set and have no effect, sorted.
	Unused []Unused
}

// Unused is a key that has no effect.
type Unused struct{ Key, Why string }

func (u Unused) String() string { return u.Key + ": " + u.Why }

// Defaults are the defaults of workflows.
type Defaults struct {
	Metadata wf.Metadata     `json:"metadata,omitempty"`
	Spec     wf.WorkflowSpec `json:"spec,omitempty"`
}

// Restriction is a value of workflowRestrictions.templateReferencing.
type Restriction string

// Strict runs only workflows that refer to a WorkflowTemplate. Secure also makes sure that they run
// what the template has, whatever their status says.
const (
	Unrestricted Restriction = ""
	Strict       Restriction = "Strict"
	Secure       Restriction = "Secure"
)

// Retention holds the numbers of finished workflows that are kept, by phase; 0 keeps all.
type Retention struct {
	Completed int `json:"completed,omitempty"`
	Failed    int `json:"failed,omitempty"`
	Errored   int `json:"errored,omitempty"`
}

// Of returns how many workflows with a phase are kept; 0 keeps all.
func (r Retention) Of(phase wf.WorkflowPhase) int {
	switch phase {
	case wf.WorkflowSucceeded:
		return r.Completed
	case wf.WorkflowFailed:
		return r.Failed
	case wf.WorkflowError:
		return r.Errored
	}
	return 0
}

// LogSpecs says of which pods the specs are logged: those of failed nodes, or all.
type LogSpecs struct {
	FailedPod bool `json:"failedPod,omitempty"`
	AllPods   bool `json:"allPods,omitempty"`
}

// Error says which key of the configuration is wrong.
type Error struct {
	Key string
	err error
}

func (e *Error) Error() string { return e.Key + ": " + e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// Parse parses the data of a ConfigMap: one YAML text under the key "config", or a YAML text for
// each key of the configuration. The error is an *Error, or several joined.
func Parse(data map[string]string) (*Settings, error) {
	values := map[string]json.RawMessage{}
	if text, whole := data[wholeKey]; whole {
		if len(data) > 1 {
			return nil, &Error{wholeKey, errors.New("must be the only key of the ConfigMap if it is set")}
		}
		raw, err := yamldoc.ToJSON([]byte(text), "the configuration")
		if err == nil {
			err = json.Unmarshal(raw, &values)
		}
		if err != nil {
			return nil, &Error{wholeKey, plain(err)}
		}
	} else {
		for key, text := range data {
			raw, err := yamldoc.ToJSON([]byte(text), "the value")
			if err != nil {
				return nil, &Error{key, plain(err)}
			}
			values[key] = raw
		}
	}
	s := &Settings{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		raw := values[key]
		if string(raw) == "null" {
			continue
		}
		if why, unused := notActedOn[key]; unused {
			s.ignore(key, why)
			continue
		}
		read, known := actedOn[key]
		if !known {
			s.ignore(key, "is no key of the configuration")
			continue
		}
		if err := read(s, raw); err != nil {
			errs = append(errs, &Error{key, plain(err)})
		}
	}
	slices.SortFunc(s.Unused, func(a, b Unused) int { return strings.Compare(a.Key, b.Key) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// plain returns an error of a decoder without the Go types that it names.
func plain(err error) error {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		where := ""
		if wrong.Field != "" {
			where = wrong.Field + ": "
		}
		return fmt.Errorf("%sa %s is not expected here", where, wrong.Value)
	}
	return err
}

func (s *Settings) ignore(key, why string) { s.Unused = append(s.Unused, Unused{key, why}) }

// actedOn are the keys that have an effect.
var actedOn = map[string]func(*Settings, json.RawMessage) error{
	"instanceID":           func(s *Settings, raw json.RawMessage) error { return s.instanceID(raw) },
	"parallelism":          func(s *Settings, raw json.RawMessage) error { return number(raw, &s.Parallelism) },
	"namespaceParallelism": func(s *Settings, raw json.RawMessage) error { return number(raw, &s.NamespaceParallelism) },
	"workflowDefaults":     func(s *Settings, raw json.RawMessage) error { return s.workflowDefaults(raw) },
	"workflowRestrictions": func(s *Settings, raw json.RawMessage) error { return s.workflowRestrictions(raw) },
	"retentionPolicy":      func(s *Settings, raw json.RawMessage) error { return s.retentionPolicy(raw) },
	"podSpecLogStrategy":   func(s *Settings, raw json.RawMessage) error { return strict(raw, &s.LogSpecs) },
	"artifactRepository":   func(s *Settings, raw json.RawMessage) error { return s.artifactRepository(raw) },
	"mainContainer":        func(s *Settings, raw json.RawMessage) error { return s.mainContainer(raw) },
	"executor":             func(s *Settings, raw json.RawMessage) error { return s.executor(raw) },
	"images":               func(s *Settings, raw json.RawMessage) error { return s.images(raw) },
	"podGCGracePeriodSeconds": func(s *Settings, raw json.RawMessage) error {
		seconds := 0
		err := number(raw, &seconds)
		grace := int64(seconds)
		s.PodGCGrace = &grace
		return err
	},
	"podGCDeleteDelayDuration": func(s *Settings, raw json.RawMessage) error {
		var d metav1.Duration
		err := json.Unmarshal(raw, &d)
		if err == nil && d.Duration < 0 {
			err = errors.New("must not be negative")
		}
		s.PodGCDelay = &d.Duration
		return err
	},
	"workflowEvents": func(s *Settings, raw json.RawMessage) (err error) {
		s.WorkflowEvents, err = s.events(raw, "workflowEvents")
		return err
	},
	"persistence":     func(s *Settings, raw json.RawMessage) error { return s.persistence(raw) },
	"synchronization": func(s *Settings, raw json.RawMessage) error { return s.synchronization(raw) },
	"nodeEvents": func(s *Settings, raw json.RawMessage) (err error) {
		s.NodeEvents, err = s.events(raw, "nodeEvents")
		return err
	},
}

const ofServer = "is read by Argo's server and its UI; the manager does not use it"

// notActedOn are the keys of the reference's configuration that have no effect, and why.
var notActedOn = map[string]string{
	"columns":                 ofServer,
	"links":                   ofServer,
	"navColor":                ofServer,
	"sso":                     ofServer,
	"namespace":               "the manager runs the workflows of all namespaces; instanceID selects some",
	"kubeConfig":              "the executor uses the pod's service account",
	"metricsConfig":           "see the manager's flag --metrics-bind-address",
	"telemetryConfig":         "see the manager's flag --metrics-bind-address",
	"resourceRateLimit":       "the manager adapts its writes to what the API server bears",
	"initialDelay":            "workflows begin at once",
	"artifactDrivers":         "artifact plugins are not supported",
	"failedPodRestart":        "pods that their node refused are always created again; others as retryStrategy says",
	"disableAgentPodCreation": "there are no agent pods: requests and plugins have pods of their own",
	"initlessPod":             "pods have only the containers that their template needs",
}

// number decodes a number that must not be negative. Clients write it as a text, too.
func number(raw json.RawMessage, into *int) error {
	text := string(raw)
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = quoted
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%.40s is not a whole number", text)
	}
	if n < 0 {
		return fmt.Errorf("%d is negative", n)
	}
	*into = n
	return nil
}

// strict decodes an object in which every field must be known. Errors have the path of the field.
func strict(raw json.RawMessage, into any) error {
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(whole(fields).(map[string]any), into, true)
}

// whole returns a decoded value with integers in place of floating-point numbers that are whole, as
// the converter of unstructured objects wants them.
func whole(v any) any {
	switch v := v.(type) {
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	}
	return v
}

func (s *Settings) instanceID(raw json.RawMessage) error {
	if err := json.Unmarshal(raw, &s.InstanceID); err != nil {
		return err
	}
	if faults := validation.IsValidLabelValue(s.InstanceID); len(faults) > 0 {
		return fmt.Errorf("%q is no value of a label", s.InstanceID)
	}
	return nil
}

func (s *Settings) workflowDefaults(raw json.RawMessage) error {
	d := &Defaults{}
	if err := strict(raw, d); err != nil {
		return err
	}
	if d.Spec.WorkflowTemplateRef != nil {
		return errors.New("spec.workflowTemplateRef: a default cannot refer to a template")
	}
	if _, own := d.Metadata.Labels[wf.LabelInstanceID]; own {
		return fmt.Errorf("metadata.labels: %s is set by those who submit, and instanceID selects by it", wf.LabelInstanceID)
	}
	for _, list := range []struct {
		name    string
		entries map[string]string
		value   func(string) []string
	}{
		{"labels", d.Metadata.Labels, validation.IsValidLabelValue},
		{"annotations", d.Metadata.Annotations, func(string) []string { return nil }},
	} {
		for _, key := range slices.Sorted(maps.Keys(list.entries)) {
			if faults := append(validation.IsQualifiedName(strings.ToLower(key)), list.value(list.entries[key])...); len(faults) > 0 {
				return fmt.Errorf("metadata.%s[%s]: %s", list.name, key, strings.Join(faults, "; "))
			}
		}
	}
	s.Defaults = d
	return nil
}

func (s *Settings) workflowRestrictions(raw json.RawMessage) error {
	var r struct {
		TemplateReferencing Restriction `json:"templateReferencing,omitempty"`
	}
	if err := strict(raw, &r); err != nil {
		return err
	}
	switch r.TemplateReferencing {
	case Unrestricted, Strict, Secure:
		s.Restriction = r.TemplateReferencing
		return nil
	}
	return fmt.Errorf("templateReferencing: %q is none of %s, %s", r.TemplateReferencing, Strict, Secure)
}

func (s *Settings) retentionPolicy(raw json.RawMessage) error {
	if err := strict(raw, &s.Retention); err != nil {
		return err
	}
	if r := s.Retention; r.Completed < 0 || r.Failed < 0 || r.Errored < 0 {
		return errors.New("a negative number of workflows cannot be kept")
	}
	return nil
}

// artifactRepository takes in a repository. One that is not supported harms only the workflows that
// need it.
func (s *Settings) artifactRepository(raw json.RawMessage) error {
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if len(fields) == 0 {
		return nil
	}
	if s.Repository, s.RepositoryError = pods.ParseRepository(string(raw)); s.RepositoryError != nil {
		s.ignore("artifactRepository", s.RepositoryError.Error())
	}
	return nil
}

func (s *Settings) mainContainer(raw json.RawMessage) error {
	c := &corev1.Container{}
	if err := strict(raw, c); err != nil {
		return err
	}
	s.MainContainer = c
	return nil
}

// executorFields are the fields of the key executor that have an effect.
var executorFields = []string{"resources", "securityContext", "env", "imagePullPolicy"}

// executorUnused are the other fields that have a reason of their own.
var executorUnused = map[string]string{
	"image": "it has Argo's executor; the manager's flag --executor-image names Lockstep's",
	"name":  "containers have names of their own",
}

func (s *Settings) executor(raw json.RawMessage) error {
	c := &corev1.Container{}
	if err := strict(raw, c); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	for field := range fields {
		if !slices.Contains(executorFields, field) {
			why, known := executorUnused[field]
			if !known {
				why = "is not a setting of Lockstep's executor"
			}
			s.ignore("executor."+field, why)
		}
	}
	s.Executor = &corev1.Container{
		Resources: c.Resources, SecurityContext: c.SecurityContext, Env: c.Env, ImagePullPolicy: c.ImagePullPolicy,
	}
	return nil
}

func (s *Settings) images(raw json.RawMessage) (err error) {
	s.Images, err = pods.ParseEntrypoints(raw)
	return err
}

func (s *Settings) events(raw json.RawMessage, key string) (*bool, error) {
	var e struct {
		Enabled   *bool `json:"enabled,omitempty"`
		SendAsPod *bool `json:"sendAsPod,omitempty"`
	}
	if err := strict(raw, &e); err != nil {
		return nil, err
	}
	if e.SendAsPod != nil && *e.SendAsPod {
		s.ignore(key+".sendAsPod", "events are about the workflow")
	}
	return e.Enabled, nil
}
