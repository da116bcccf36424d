package system

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/localcluster"
)

// The values of Options.Foreign.
const (
	Deployments = "deployments"
	Pods        = "pods"
	// Gangs are Deployments whose pods start together or not at all, where the system knows the
	// annotation that says so.
	Gangs = "gangs"
	// Affinity are Deployments whose pods are on different nodes, by affinity between pods.
	Affinity = "affinity"
)

// CheckForeign returns an error if kind is no value of Options.Foreign.
func CheckForeign(kind string) error {
	if kinds := slices.Concat(scenario.Foreign, scenario.ForeignOthers); !slices.Contains(kinds, kind) {
		return fmt.Errorf("foreign %q: want one of %s", kind, strings.Join(kinds, ", "))
	}
	return nil
}

// foreign is a system that schedules pods which others create: a Deployment, or the user. A job of the
// load is a Deployment, or one pod.
type foreign struct {
	System
	kind      string
	scheduler string
}

// own returns the system itself, or as a system for the pods of others if the options say so.
func own(s System, o Options, scheduler string) System {
	if o.Foreign == "" {
		return s
	}
	return foreign{System: s, kind: o.Foreign, scheduler: scheduler}
}

func (f foreign) Configure(c *localcluster.Config) {
	f.System.Configure(c)
	if !c.WithScheduler { // else its own limits are set
		c.ExtraArgs[localcluster.ControllerManager] = append(c.ExtraArgs[localcluster.ControllerManager], "--kube-api-qps=-1")
	}
}

func (f foreign) Clients() []Client {
	out := f.System.Clients()
	for _, c := range out {
		if c.Name == controllerManager {
			return out
		}
	}
	return append(out, Client{Name: controllerManager, QPS: unlimited, Burst: unlimited})
}

func (f foreign) Gangs() bool { return false }

func (f foreign) Jobs() schema.GroupVersionResource {
	if f.kind == Pods {
		return corev1.SchemeGroupVersion.WithResource("pods")
	}
	return appsv1.SchemeGroupVersion.WithResource("deployments")
}

func (f foreign) NewList() runtime.Object {
	if f.kind == Pods {
		return &corev1.PodList{}
	}
	return &appsv1.DeploymentList{}
}

func (f foreign) NewJob(j Job) (drive.Object, error) {
	meta, template := metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name}, j.podMeta()
	spec := scenario.PodSpec()
	spec.SchedulerName, spec.RestartPolicy = f.scheduler, corev1.RestartPolicyAlways
	if f.kind == Pods {
		meta.Annotations = template.Annotations
		return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta, Spec: spec}, nil
	}
	replicas := int32(j.Pods)
	template.Labels = map[string]string{"app": j.Name}
	switch f.kind {
	case Gangs:
		meta.Annotations = map[string]string{schedulingv1beta1.GroupMinMemberAnnotation: strconv.Itoa(j.Pods)}
	case Affinity:
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: template.Labels}, TopologyKey: corev1.LabelHostname,
			}},
		}}
	}
	return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: template, Spec: spec}}}, nil
}

func (f foreign) Min(int, bool) int { return 0 }

func (f foreign) State(o drive.Object) analyse.JobState {
	s := analyse.JobState{Name: o.GetName(), Running: analyse.Unknown, Succeeded: analyse.Unknown, Failed: analyse.Unknown, Explained: true}
	if d, ok := o.(*appsv1.Deployment); ok {
		s.Running = int(d.Status.ReadyReplicas)
	}
	return s
}

// Identify parses DEPLOYMENT-HASH-xxxxx; a plain pod is its own job.
func (f foreign) Identify(pod string) (string, int) {
	if f.kind == Pods {
		return pod, -1
	}
	replicaSet, _, _ := cutLast(pod)
	deployment, _, _ := cutLast(replicaSet)
	return deployment, -1
}

// Writers include the controllers of Deployments and ReplicaSets.
func (f foreign) Writers() map[string]bool {
	return map[string]bool{observe.Manager: true, observe.ControllerManager: true, observe.Scheduler: true}
}
