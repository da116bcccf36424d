// Package workflows is the user's hand on workflows: read them, follow them, and change them.
//
//	Client.Get, List, Watch, Follow  ──▶ workflows with their nodes unpacked
//	Client.Suspend, Resume, Stop, Terminate, SetNode ──▶ the same changes of the object that every client of this API makes
//	Client.Logs ──▶ what the pods of a workflow printed
//
// The changes are to the Workflow object alone and never a call to a controller: whoever runs the workflow sees them there. So
// other tools and this one can be used side by side.
package workflows
