// Package scheme registers every API type that Lockstep reads or writes: the types in api/ and the
// types of Kubernetes.
package scheme

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	oamv1alpha1 "lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oamv1beta1 "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Scheme maps Go types to kinds. It is complete when the program starts, and not changed
// afterwards.
var Scheme = newScheme()

// Codecs encodes and decodes the types of Scheme.
var Codecs = serializer.NewCodecFactory(Scheme)

// ParameterCodec encodes the options of requests (list, delete, ...) as query parameters.
var ParameterCodec = runtime.NewParameterCodec(Scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme,
		batchv1alpha1.AddToScheme,
		schedulingv1beta1.AddToScheme,
		busv1alpha1.AddToScheme,
		flowv1alpha1.AddToScheme,
		argov1alpha1.AddToScheme,
		topologyv1alpha1.AddToScheme,
		hypernodev1alpha1.AddToScheme,
		oamv1beta1.AddToScheme,
		oamv1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two types have one kind: a programming error that every run shows
		}
	}
	return s
}
