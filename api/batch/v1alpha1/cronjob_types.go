package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CronJob creates Jobs on a schedule.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cronjobs,shortName=cronvcjob;cronvj
// +kubebuilder:printcolumn:name="SCHEDULE",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="TIMEZONE",type=string,JSONPath=`.spec.timeZone`
// +kubebuilder:printcolumn:name="SUSPEND",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="LAST SCHEDULE",type=date,JSONPath=`.status.lastScheduleTime`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.conditions[?(@.status=="False")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name: must be at most 52 characters: the names of its Jobs are longer by 11"
type CronJob struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CronJobSpec `json:"spec"`
	// +optional
	Status CronJobStatus `json:"status,omitempty"`
}

// ConcurrencyPolicy says what happens at a scheduled time while a Job of an earlier time is active.
// +kubebuilder:validation:Enum=Allow;Forbid;Replace
type ConcurrencyPolicy string

// The concurrency policies.
const (
	AllowConcurrent   ConcurrencyPolicy = "Allow"   // both run
	ForbidConcurrent  ConcurrencyPolicy = "Forbid"  // the new one is skipped
	ReplaceConcurrent ConcurrencyPolicy = "Replace" // the earlier one is deleted
)

// CronJobSpec is the specification of a CronJob.
type CronJobSpec struct {
	// Schedule is when Jobs are created: minute, hour, day of month, month and day of week, or
	// @hourly, @daily, @weekly, @monthly, @yearly, or @every and a duration.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ')",message="must not contain a time zone; there is the field timeZone"
	// +kubebuilder:validation:XValidation:rule="self.startsWith('@') ? (self.startsWith('@every') ? duration(self.substring(6).trim()) >= duration('1s') : self in ['@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly']) : self.contains('TZ') || self.matches('(?i)^[[:space:]]*,*([*?]|0*[0-5]?[0-9](-0*[0-5]?[0-9])?)(/[0-9]+)?(,+([*?]|0*[0-5]?[0-9](-0*[0-5]?[0-9])?)(/[0-9]+)?)*,*[[:space:]]+,*([*?]|0*([01]?[0-9]|2[0-3])(-0*([01]?[0-9]|2[0-3]))?)(/[0-9]+)?(,+([*?]|0*([01]?[0-9]|2[0-3])(-0*([01]?[0-9]|2[0-3]))?)(/[0-9]+)?)*,*[[:space:]]+,*([*?]|0*([1-9]|[12][0-9]|3[01])(-0*([1-9]|[12][0-9]|3[01]))?)(/[0-9]+)?(,+([*?]|0*([1-9]|[12][0-9]|3[01])(-0*([1-9]|[12][0-9]|3[01]))?)(/[0-9]+)?)*,*[[:space:]]+,*([*?]|(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/[0-9]+)?(,+([*?]|(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0*([1-9]|1[0-2])|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/[0-9]+)?)*,*[[:space:]]+,*([*?]|(0*[0-6]|sun|mon|tue|wed|thu|fri|sat)(-(0*[0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/[0-9]+)?(,+([*?]|(0*[0-6]|sun|mon|tue|wed|thu|fri|sat)(-(0*[0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/[0-9]+)?)*,*[[:space:]]*$')",message="must be a cron schedule of five fields, or @hourly, @daily, @weekly, @monthly, @yearly, or @every and a duration of at least a second"
	Schedule string `json:"schedule"`
	// TimeZone is the IANA name of the time zone of the schedule, for example Europe/Berlin. The
	// default is UTC.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self != 'Local'",message="Local is different on each machine; name the time zone"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$') && (self == 'Local' || timestamp('2000-01-01T00:00:00Z').getFullYear(self) > 0)",message="must be the name of a time zone of the IANA database, such as Europe/Berlin"
	TimeZone *string `json:"timeZone,omitempty"`
	// StartingDeadlineSeconds is how late a Job may be created that could not be created on time.
	// A scheduled time that is later than this has no Job. The default is that only the last
	// scheduled time counts, however late.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// ConcurrencyPolicy says what happens at a scheduled time while an earlier Job is active.
	// +optional
	// +kubebuilder:default=Allow
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
	// Suspend stops the creation of Jobs. Jobs that exist continue.
	// +optional
	// +kubebuilder:default=false
	Suspend *bool `json:"suspend,omitempty"`
	// JobTemplate is the template from which the Jobs are made.
	JobTemplate JobTemplateSpec `json:"jobTemplate"`
	// SuccessfulJobsHistoryLimit is how many completed Jobs are kept.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	SuccessfulJobsHistoryLimit *int32 `json:"successfulJobsHistoryLimit,omitempty"`
	// FailedJobsHistoryLimit is how many Jobs are kept that ended otherwise.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	FailedJobsHistoryLimit *int32 `json:"failedJobsHistoryLimit,omitempty"`
}

// JobTemplateSpec is the template of the Jobs of a CronJob.
type JobTemplateSpec struct {
	// The labels and annotations of the Jobs.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the specification of the Jobs.
	Spec JobSpec `json:"spec"`
}

// CronJobStatus is the state of a CronJob.
type CronJobStatus struct {
	// Active lists the Jobs that have not ended.
	// +optional
	Active []corev1.ObjectReference `json:"active,omitempty"`
	// LastScheduleTime is the last scheduled time for which a Job was created.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// LastSuccessfulTime is when a Job last completed.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`
	// Conditions say what is wrong: Valid and Created are False, with the field or the server's
	// answer in the message, Supported names what has no effect. Volcano has no such field.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The types of the conditions of CronJobs. A condition that would be True is absent.
const (
	// CronJobValid is False if the spec has an error. The message names the field.
	CronJobValid = "Valid"
	// CronJobSupported is False if the spec has fields that Lockstep does not act on. The message
	// names them.
	CronJobSupported = "Supported"
	// CronJobCreated is False if the API server refused the last Job.
	CronJobCreated = "Created"
)

// Reasons of a CronJob's conditions.
const (
	ReasonInvalidSpec = "InvalidSpec" // CronJobValid
	ReasonRefused     = "Refused"     // CronJobCreated: the message is the API server's
)

// CronJobList is a list of CronJobs.
//
// +kubebuilder:object:root=true
type CronJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CronJob `json:"items"`
}
