package localcluster

import "os"

// The audit log is one JSON object (audit.k8s.io/v1 Event) a line, in the order in which requests ended, for every
// request that may change something, and none that only reads:
//
//	{"level":"Metadata","stage":"ResponseComplete","verb":"create","user":{"username":"..."},
//	 "userAgent":"...","objectRef":{"resource":"pods","namespace":"default","name":"p","subresource":"binding"},
//	 "responseStatus":{"code":201},"requestReceivedTimestamp":"...Z","stageTimestamp":"...Z",
//	 "annotations":{"audit.lockstep.dev/node":"node-0007","audit.lockstep.dev/name":"p"}}
//
// Times are in microseconds; stageTimestamp is when the response was sent. objectRef has no name when the client used
// generateName, and never the node of a pod; both are in the annotations that the admission plugin AuditPlugin adds to
// creates of pods and of pods/binding:
//
//	audit.lockstep.dev/name   the pod's final name
//	audit.lockstep.dev/node   spec.nodeName at create, or the binding's target; absent when there is none
//
// Creates that failed are there too: look at responseStatus.code. The API server writes each event before it answers
// (blocking mode), so that none is dropped and a client that has its answer finds it in the log.
const (
	// AuditPlugin is lockstep-kube's admission plugin that annotates audit events. A ValidatingAdmissionPolicy could do
	// the same on any server, but converts each pod for it: a sixth of what the creation of a pod costs.
	AuditPlugin = "LockstepAudit"
	// AuditNode and AuditName are the annotations of audit events.
	AuditNode = "audit.lockstep.dev/node"
	AuditName = "audit.lockstep.dev/name"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  verbs: [get, list, watch]
# Questions, not changes.
- level: None
  resources:
  - group: authentication.k8s.io
  - group: authorization.k8s.io
- level: Metadata
`

func writeAuditPolicy(files layout) error {
	return os.WriteFile(files.auditPolicy(), []byte(auditPolicy), 0o600)
}

func auditArgs(files layout) []string {
	return []string{
		"--enable-admission-plugins=" + AuditPlugin,
		"--audit-policy-file=" + files.auditPolicy(),
		"--audit-log-path=" + files.auditLog(),
		"--audit-log-mode=blocking",
		// One file: a reader that follows it need not care about rotation. In MB.
		"--audit-log-maxsize=102400",
	}
}
