// Package v1alpha1 holds the workflow API: Workflow, WorkflowTemplate, ClusterWorkflowTemplate, CronWorkflow and
// WorkflowTaskResult, wire compatible with argoproj.io/v1alpha1.
//
//	workflow_types.go   Workflow and its spec
//	template_types.go   templates, steps, tasks, loops, retries, hooks
//	artifact_types.go   artifacts and where they are kept
//	status_types.go     node and workflow status
//	cron_types.go       CronWorkflow
//	result_types.go     WorkflowTaskResult
//	values.go           values that may be written as a string, number or boolean
//	names.go            node ids, pod names, labels and annotations that other programs rely on
//
// Types only carry: what a field means is decided in internal/workflow, and a field that nobody acts on is refused there by
// name. The package is skipped by the CRD generator until the controller that serves the kinds is installed with them.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +groupName=argoproj.io
package v1alpha1
