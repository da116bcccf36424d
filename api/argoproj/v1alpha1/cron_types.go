package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CronWorkflow starts workflows on a schedule.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=cronworkflows,shortName=cwf;cronwf
// +kubebuilder:printcolumn:name="Schedules",type=string,JSONPath=`.spec.schedules`
// +kubebuilder:printcolumn:name="Timezone",type=string,JSONPath=`.spec.timezone`
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Last",type=date,JSONPath=`.status.lastScheduledTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CronWorkflow struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              CronWorkflowSpec   `json:"spec"`
	Status            CronWorkflowStatus `json:"status,omitempty"`
}

// CronWorkflowList is a list of CronWorkflows.
//
// +kubebuilder:object:root=true
type CronWorkflowList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CronWorkflow `json:"items"`
}

// ConcurrencyPolicy says what happens at a scheduled time if an earlier workflow has not ended.
//
// +kubebuilder:validation:Enum="";Allow;Forbid;Replace
type ConcurrencyPolicy string

const (
	ConcurrencyAllow   ConcurrencyPolicy = "Allow"
	ConcurrencyForbid  ConcurrencyPolicy = "Forbid"
	ConcurrencyReplace ConcurrencyPolicy = "Replace"
)

// CronWorkflowSpec specifies the workflow to start, and when.
type CronWorkflowSpec struct {
	WorkflowSpec     WorkflowSpec       `json:"workflowSpec"`
	WorkflowMetadata *metav1.ObjectMeta `json:"workflowMetadata,omitempty"`
	// Schedule is the only schedule in manifests of earlier versions. Use AllSchedules to read it.
	Schedule                   string            `json:"schedule,omitempty"`
	Schedules                  []string          `json:"schedules,omitempty"`
	Timezone                   string            `json:"timezone,omitempty"`
	ConcurrencyPolicy          ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
	StartingDeadlineSeconds    *int64            `json:"startingDeadlineSeconds,omitempty"`
	Suspend                    bool              `json:"suspend,omitempty"`
	SuccessfulJobsHistoryLimit *int32            `json:"successfulJobsHistoryLimit,omitempty"`
	FailedJobsHistoryLimit     *int32            `json:"failedJobsHistoryLimit,omitempty"`
	When                       string            `json:"when,omitempty"`
	StopStrategy               *StopStrategy     `json:"stopStrategy,omitempty"`
}

// AllSchedules returns the schedules of both Schedule and Schedules.
func (s *CronWorkflowSpec) AllSchedules() []string {
	if s.Schedule == "" {
		return s.Schedules
	}
	return append([]string{s.Schedule}, s.Schedules...)
}

// StopStrategy ends the schedule when an expression becomes true.
type StopStrategy struct {
	Expression string `json:"expression"`
}

// CronWorkflowStatus is the state of a CronWorkflow: the workflows that it started.
type CronWorkflowStatus struct {
	Active            []corev1.ObjectReference `json:"active,omitempty"`
	LastScheduledTime *metav1.Time             `json:"lastScheduledTime,omitempty"`
	Conditions        []Condition              `json:"conditions,omitempty"`
	Succeeded         int64                    `json:"succeeded"`
	Failed            int64                    `json:"failed"`
	Phase             string                   `json:"phase,omitempty"`
}
