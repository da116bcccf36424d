// Package workflows is a client for users of workflows: it reads, follows and changes them.
//
//	Client.Get, Watch, Wait ──▶ workflows with their nodes unpacked
//	Client.List ──▶ workflows with their nodes as stored, possibly compressed
//	Client.Suspend, Resume, Stop, Terminate, SetNode ──▶ changes of the Workflow object
//	Client.Logs ──▶ lines printed by the pods of a workflow
//
// No call goes to a controller. The controller that runs a workflow sees a change in the object, so
// this tool and other clients of the API can be used side by side.
package workflows
