// Package workflows is a client for users of workflows: it reads, follows and changes them.
//
//	Client.Get, Watch, Wait ──▶ workflows with their nodes unpacked
//	Client.List ──▶ workflows with their nodes as stored, possibly compressed
//	Client.Suspend, Resume, Stop, Terminate, SetNode ──▶ changes of the object, as every client of this API makes them
//	Client.Logs ──▶ lines printed by the pods of a workflow
//
// All changes are changes of the Workflow object; no call goes to a controller. The controller that
// runs the workflow sees them in the object, so this tool and others can be used side by side.
package workflows
