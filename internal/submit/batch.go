package submit

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Order creates a Command to a Job or a Queue. The Command belongs to its target.
func Order(ctx context.Context, cfg *rest.Config, target *Object, action bus.Action, dryRun kubeclient.DryRun) error {
	client, err := kubeclient.ForGroupVersion(cfg, nil, bus.GroupVersion, scheme.Scheme)
	if err != nil {
		return err
	}
	namespace, name := target.Name()
	if namespace == "" {
		namespace = metav1.NamespaceDefault // a Queue has none
	}
	owner := target.ownerReference()
	c := &bus.Command{Action: action, TargetObject: &owner}
	c.GenerateName, c.OwnerReferences = name+"-"+strings.ToLower(string(action))+"-", []metav1.OwnerReference{owner}
	return client.Post().Namespace(namespace).Resource("commands").
		VersionedParams(&metav1.CreateOptions{DryRun: dryRun.Option()}, metav1.ParameterCodec).Body(c).Do(ctx).Error()
}

// CreateQueue creates a Queue.
func CreateQueue(ctx context.Context, cfg *rest.Config, q *scheduling.Queue, dryRun kubeclient.DryRun) error {
	client, err := kubeclient.ForGroupVersion(cfg, nil, scheduling.GroupVersion, scheme.Scheme)
	if err != nil {
		return err
	}
	return client.Post().Resource("queues").
		VersionedParams(&metav1.CreateOptions{DryRun: dryRun.Option()}, metav1.ParameterCodec).Body(q).Do(ctx).Error()
}
