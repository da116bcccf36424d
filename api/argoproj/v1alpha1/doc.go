// Package v1alpha1 holds the workflow API: Workflow, WorkflowTemplate, ClusterWorkflowTemplate,
// CronWorkflow and WorkflowTaskResult, wire compatible with argoproj.io/v1alpha1.
//
//	workflow_types.go   Workflow and its spec
//	template_types.go   templates, steps, tasks, loops, retries, hooks
//	artifact_types.go   artifacts and where they are kept
//	status_types.go     node and workflow status
//	cron_types.go       CronWorkflow
//	result_types.go     WorkflowTaskResult
//	values.go           values that may be written as a string, number or boolean
//	names.go            node IDs, pod names, labels and annotations that other programs rely on
//
// internal/workflow interprets the fields, and refuses unsupported fields by name. hack/crd leaves
// some parts of the CRDs without a schema: artifacts, statuses, and the parts that Kubernetes
// defines (containers, volumes, affinities). Their schemas would be megabytes, which the API server
// would check at every write of a workflow. Errors in these parts are found when a pod is created.
// Workflow and CronWorkflow have no status subresource, because clients such as the argo command
// write a workflow's spec and status in one patch.
//
// +kubebuilder:object:generate=true
// +groupName=argoproj.io
package v1alpha1
