package pods

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// Object is an object that a plugin needs.
type Object struct {
	Plugin string
	Object interface {
		metav1.Object
		runtime.Object
	}
}

const (
	hostsMount = "/etc/volcano"
	// configMapBytesMax is the API server's bound on a ConfigMap, less room for its metadata.
	configMapBytesMax = 1<<20 - 4096
	// A headless service needs no port, but older cluster DNS servers skip services without one.
	placeholderPort = "placeholder"
)

type svcArgs struct {
	publishNotReady, noNetworkPolicy, injectEnv bool
}

// addService gives the pods names that resolve, tells each the names of all, and closes the network to others.
func (s *Set) addService(job *batch.Job, args []string) error {
	a, err := parseSvc(args)
	if err != nil {
		return err
	}
	hosts, err := hostsOf(job, s.tasks)
	if err != nil {
		return err
	}
	own := metav1.ObjectMeta{
		Namespace: job.Namespace, Name: job.Name, OwnerReferences: ownerOf(job),
	}
	config := own
	config.Name = job.Name + "-svc"
	members := map[string]string{batch.JobNameKey: job.Name, batch.JobNamespaceKey: job.Namespace}
	s.objects = append(s.objects,
		Object{batch.SvcPlugin, &corev1.ConfigMap{ObjectMeta: config, Data: hosts}},
		Object{batch.SvcPlugin, &corev1.Service{ObjectMeta: own, Spec: corev1.ServiceSpec{
			ClusterIP:                corev1.ClusterIPNone,
			Selector:                 members,
			PublishNotReadyAddresses: a.publishNotReady,
			Ports: []corev1.ServicePort{{
				Name: placeholderPort, Port: 1, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(1),
			}},
		}}})
	if !a.noNetworkPolicy {
		same := metav1.LabelSelector{MatchLabels: members}
		s.objects = append(s.objects, Object{batch.SvcPlugin, &networkingv1.NetworkPolicy{ObjectMeta: own, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: same,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &same}}}},
		}}})
	}
	for i := range s.tasks {
		injectService(&s.tasks[i], s.tasks, job.Name, config.Name, a.injectEnv)
	}
	return nil
}

func injectService(t *Task, all []Task, subdomain, config string, injectEnv bool) {
	t.hostname = true
	spec := &t.base.Spec
	if spec.Subdomain == "" {
		spec.Subdomain = subdomain
	}
	spec.Volumes = append(spec.Volumes[:len(spec.Volumes):len(spec.Volumes)], corev1.Volume{
		Name: config,
		VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: config},
		}},
	})
	mount(spec, []corev1.VolumeMount{{Name: config, MountPath: hostsMount}})
	if !injectEnv {
		return
	}
	var vars []corev1.EnvVar
	for _, other := range all {
		for _, key := range []string{hostsKey(other.Name), numKey(other.Name)} {
			vars = append(vars, corev1.EnvVar{Name: key, ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: config}, Key: key,
				},
			}})
		}
	}
	spec.Containers = withEnv(spec.Containers, vars)
	spec.InitContainers = withEnv(spec.InitContainers, vars)
}

// hostsOf is the content of the ConfigMap: the names of every task's pods, in two spellings, and their number.
func hostsOf(job *batch.Job, tasks []Task) (map[string]string, error) {
	data := make(map[string]string, 3*len(tasks))
	size := 0
	for i := range tasks {
		t := &tasks[i]
		var names []string
		subdomain := t.base.Spec.Subdomain
		if subdomain == "" {
			subdomain = job.Name
		}
		if h := t.base.Spec.Hostname; h != "" {
			names = []string{h + "." + subdomain}
		} else {
			names = make([]string, t.Replicas)
			for n := range names {
				names[n] = t.PodName(n) + "." + subdomain
			}
		}
		lines := strings.Join(names, "\n")
		size += 2 * len(lines)
		data[t.Name+".host"] = lines
		data[hostsKey(t.Name)] = strings.Join(names, ",")
		data[numKey(t.Name)] = strconv.Itoa(len(names))
	}
	if size > configMapBytesMax {
		return nil, fmt.Errorf("spec.plugins.svc: the names of the job's pods take %d KiB, more than the 1024 KiB that a ConfigMap can hold", size>>10)
	}
	return data, nil
}

func hostsKey(task string) string { return "VC_" + envName(task) + "_HOSTS" }
func numKey(task string) string   { return "VC_" + envName(task) + "_NUM" }

func envName(task string) string { return strings.ToUpper(strings.ReplaceAll(task, "-", "_")) }

func parseSvc(args []string) (svcArgs, error) {
	a := svcArgs{injectEnv: true}
	for _, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		set := true
		if given {
			var err error
			if set, err = strconv.ParseBool(value); err != nil {
				return a, fmt.Errorf("spec.plugins.svc: %q: want true or false", arg)
			}
		}
		switch name {
		case "publish-not-ready-addresses":
			a.publishNotReady = set
		case "disable-network-policy":
			a.noNetworkPolicy = set
		case "inject-hosts-env":
			a.injectEnv = set
		default:
			return a, fmt.Errorf("spec.plugins.svc: unknown argument %q", arg)
		}
	}
	return a, nil
}

func noArguments(plugin string, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("spec.plugins.%s: unknown argument %q", plugin, args[0])
	}
	return nil
}
