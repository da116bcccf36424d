// Package workflows is a client for users of workflows: it reads, follows and changes them.
//
//	Client.Get, List, Watch, Follow  ──▶ workflows with their nodes unpacked
//	Client.Suspend, Resume, Stop, Terminate, SetNode ──▶ the same changes of the object that every client of this API makes
//	Client.Logs ──▶ what the pods of a workflow printed
//
// All changes are changes of the Workflow object; no call goes to a controller. The controller that
// runs the workflow sees them in the object, so this tool and others can be used side by side.
package workflows
