package localcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// The audit log is one JSON object (audit.k8s.io/v1 Event) a line, in the order in which requests ended, for every
// request that may change something, and none that only reads:
//
//	{"level":"Metadata","stage":"ResponseComplete","verb":"create","user":{"username":"..."},
//	 "userAgent":"...","objectRef":{"resource":"pods","namespace":"default","name":"p","subresource":"binding"},
//	 "responseStatus":{"code":201},"requestReceivedTimestamp":"...Z","stageTimestamp":"...Z",
//	 "annotations":{"audit.lockstep.dev/node":"node-0007","audit.lockstep.dev/name":"p"}}
//
// Times are in microseconds; stageTimestamp is when the response was sent. objectRef has no name when the client used
// generateName, and never the node of a pod; both are in the annotations that the admission policy AuditPolicyName adds
// to creates of pods and of pods/binding:
//
//	audit.lockstep.dev/name   the pod's final name
//	audit.lockstep.dev/node   spec.nodeName at create, or the binding's target; absent when there is none
//
// Creates that failed are there too: look at responseStatus.code. The API server writes each event before it answers
// (blocking mode), so that none is dropped and a client that has its answer finds it in the log.
const (
	// AuditPolicyName is the ValidatingAdmissionPolicy that annotates audit events, and the prefix of its keys.
	AuditPolicyName = "audit.lockstep.dev"
	// AuditNode and AuditName are the annotations of audit events.
	AuditNode = AuditPolicyName + "/node"
	AuditName = AuditPolicyName + "/name"
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
		"--audit-policy-file=" + files.auditPolicy(),
		"--audit-log-path=" + files.auditLog(),
		"--audit-log-mode=blocking",
		// One file: a reader that follows it need not care about rotation. In MB.
		"--audit-log-maxsize=102400",
	}
}

// applyAuditPolicy creates the admission policy that puts a pod's final name and its node into the audit event.
func applyAuditPolicy(ctx context.Context, client kubernetes.Interface) error {
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: AuditPolicyName},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			// The log is an observer's: it must never be the reason why a pod is refused.
			FailurePolicy: ptr.To(admissionv1.Ignore),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/binding"}},
				},
			}}},
			AuditAnnotations: []admissionv1.AuditAnnotation{
				{Key: "name", ValueExpression: `string(object.metadata.name)`},
				// An empty value leaves the annotation out.
				{Key: "node", ValueExpression: `request.?subResource.orValue("") == "binding" ? string(object.target.name) : string(object.spec.?nodeName.orValue(""))`},
			},
		},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: AuditPolicyName},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        AuditPolicyName,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Audit},
		},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// waitForAuditAnnotations returns once pods can be created and their audit events carry the annotations: the API server
// takes up new policies within a second. It asks with dry runs, which are in the log with dryRun=All in requestURI.
func (c *Cluster) waitForAuditAnnotations(ctx context.Context, client kubernetes.Interface) error {
	const name = "audit-policy-probe"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "none", Image: "none"}}},
	}
	want := fmt.Sprintf("%q:%q", AuditNode, name)
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		before, err := os.Stat(c.files.auditLog())
		if err != nil {
			return false, err
		}
		_, last = client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if last != nil {
			return false, nil // its service account is not there yet
		}
		log, err := os.Open(c.files.auditLog())
		if err != nil {
			return false, err
		}
		defer log.Close()
		if _, err := log.Seek(before.Size(), io.SeekStart); err != nil {
			return false, err
		}
		data, err := io.ReadAll(log)
		return bytes.Contains(data, []byte(want)), err
	})
	if err != nil {
		return fmt.Errorf("audit log does not show pods' nodes: %w", errors.Join(err, last))
	}
	return nil
}
