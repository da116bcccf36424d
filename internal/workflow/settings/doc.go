// Package settings reads the configuration that clusters of Argo Workflows have: the ConfigMap
// workflow-controller-configmap. It is pure.
//
//	ConfigMap data ──Parse──▶ Settings ──Options──▶ how pods are built
//	                             ├──Merge──▶ a spec with workflowDefaults
//	                             └──Refuses──▶ what workflowRestrictions forbid
//
// Every key is in one table: acted on, or not acted on for a reason, which Settings.Unused names.
// The manager reads the ConfigMap (internal/manager), and the controllers of workflows ask it for
// the Settings in force.
package settings
