package localcluster

import "os"

// The audit log has one JSON object (audit.k8s.io/v1 Event) per line, in the order in which
// requests ended, for every request that may change something, and none for requests that only
// read:
//
//	{"level":"Metadata","stage":"ResponseComplete","verb":"create","user":{"username":"..."},
//	 "userAgent":"...","objectRef":{"resource":"pods","namespace":"default","name":"p",
//	 "subresource":"binding"},"responseStatus":{"code":201},
//	 "requestReceivedTimestamp":"...Z","stageTimestamp":"...Z",
//	 "annotations":{"audit.lockstep.dev/node":"node-0007","audit.lockstep.dev/name":"p"}}
//
// Times are in microseconds; stageTimestamp is when the response was sent. objectRef has no name if
// the client used generateName, and never has the node or the phase of a pod; the admission plugin
// AuditPlugin adds them as annotations, the first two to creates of pods and of pods/binding:
//
//	audit.lockstep.dev/name   the pod's final name
//	audit.lockstep.dev/node   spec.nodeName at create, or the binding's target; absent if empty
//	audit.lockstep.dev/ended  Succeeded or Failed, of the update that gives a pod this phase
//
// The log includes refused creates, which have another responseStatus.code. The API server writes
// each event before it answers (blocking mode), so no event is dropped, and a client that has its
// answer finds the event in the log.
const (
	// AuditPlugin is lockstep-kube's admission plugin that annotates audit events. A
	// ValidatingAdmissionPolicy could do the same on any server, but it would convert each pod for
	// that, which costs a sixth of the creation of a pod.
	AuditPlugin = "LockstepAudit"
	// AuditNode, AuditName and AuditEnded are the annotations of audit events.
	AuditNode  = "audit.lockstep.dev/node"
	AuditName  = "audit.lockstep.dev/name"
	AuditEnded = "audit.lockstep.dev/ended"
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
		// One file, so that a reader that follows it need not handle rotation. The unit is MB.
		"--audit-log-maxsize=102400",
	}
}
