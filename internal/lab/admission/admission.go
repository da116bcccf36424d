package admission

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/kubeclient"
)

// Kind is what admits pods.
type Kind string

// The kinds.
const (
	None    Kind = "none"
	CEL     Kind = "cel"
	Webhook Kind = "webhook"
)

// Admission says what admits each pod.
type Admission struct {
	Kind Kind
	// Work is the CPU time of a webhook for one review, and Timeout is after how long the server
	// gives up on it.
	Work, Timeout time.Duration
}

// defaultTimeout is what the API server takes for a webhook without a timeout.
const defaultTimeout = 10 * time.Second

// Parse parses none, cel, webhook or webhook:WORK:TIMEOUT.
func Parse(text string) (Admission, error) {
	kind, rest, more := strings.Cut(text, ":")
	a := Admission{Kind: Kind(kind)}
	switch {
	case !more && (a.Kind == None || a.Kind == CEL):
		return a, nil
	case a.Kind != Webhook:
		return a, fmt.Errorf("%q: want none, cel, webhook or webhook:WORK:TIMEOUT, for example webhook:20ms:10s", text)
	}
	a.Timeout = defaultTimeout
	if !more {
		return a, nil
	}
	work, timeout, _ := strings.Cut(rest, ":")
	var err1, err2 error
	if a.Work, err1 = time.ParseDuration(work); err1 != nil || a.Work < 0 {
		return a, fmt.Errorf("%q: the work %q is no time", text, work)
	}
	if a.Timeout, err2 = time.ParseDuration(timeout); err2 != nil || a.Timeout < time.Second || a.Timeout > 30*time.Second || a.Timeout%time.Second != 0 {
		return a, fmt.Errorf("%q: the time-out %q is no whole number of seconds between 1s and 30s", text, timeout)
	}
	return a, nil
}

func (a Admission) String() string {
	if a.Kind != Webhook {
		return string(a.Kind)
	}
	return fmt.Sprintf("webhook %s, time-out %s", a.Work, a.Timeout)
}

// Argument returns the text that Parse parses.
func (a Admission) Argument() string {
	if a.Kind != Webhook {
		return string(a.Kind)
	}
	return fmt.Sprintf("%s:%s:%s", a.Kind, a.Work, a.Timeout)
}

// objectName is the name of every object that this package creates.
const objectName = "pods.lab.lockstep.dev"

var createPods = v1.RuleWithOperations{Operations: []v1.OperationType{v1.Create}, Rule: v1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
	Resources: []string{"pods"}, Scope: ptr.To(v1.NamespacedScope)}}

// rules are the CEL rules: what a webhook of this package checks, too.
var rules = []v1.Validation{
	{Expression: "object.spec.containers.all(c, has(c.resources.requests) && 'cpu' in c.resources.requests)", Message: "a container requests no cpu"},
	{Expression: "object.spec.containers.all(c, !c.image.endsWith(':latest'))", Message: "an image has the tag latest"},
	{Expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork", Message: "the pod uses the host's network"},
}

// Apply creates the policy with the CEL rules.
func Apply(ctx context.Context, cfg *rest.Config) error {
	client, err := kubeclient.Clientset(cfg)
	if err != nil {
		return err
	}
	policy := &v1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: objectName}, Spec: v1.ValidatingAdmissionPolicySpec{
		FailurePolicy:    ptr.To(v1.Fail),
		MatchConstraints: &v1.MatchResources{ResourceRules: []v1.NamedRuleWithOperations{{RuleWithOperations: createPods}}},
		Validations:      rules,
	}}
	binding := &v1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: objectName}, Spec: v1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: objectName, ValidationActions: []v1.ValidationAction{v1.Deny}}}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	return err
}

// configure creates the configurations of the webhooks at an address, which has a certificate of ca.
func configure(ctx context.Context, cfg *rest.Config, address string, ca []byte, timeout time.Duration) error {
	client, err := kubeclient.Clientset(cfg)
	if err != nil {
		return err
	}
	at := func(path string) v1.WebhookClientConfig {
		return v1.WebhookClientConfig{URL: ptr.To("https://" + address + path), CABundle: ca}
	}
	seconds := ptr.To(int32(timeout / time.Second))
	versions, none, fail := []string{"v1"}, ptr.To(v1.SideEffectClassNone), ptr.To(v1.Fail)
	validating := &v1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: objectName}, Webhooks: []v1.ValidatingWebhook{{
		Name: objectName, ClientConfig: at(validatePath), Rules: []v1.RuleWithOperations{createPods}, FailurePolicy: fail, SideEffects: none,
		TimeoutSeconds: seconds, AdmissionReviewVersions: versions}}}
	mutating := &v1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: objectName}, Webhooks: []v1.MutatingWebhook{{
		Name: objectName, ClientConfig: at(mutatePath), Rules: []v1.RuleWithOperations{createPods}, FailurePolicy: fail, SideEffects: none,
		TimeoutSeconds: seconds, AdmissionReviewVersions: versions}}}
	_, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, validating, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, mutating, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
