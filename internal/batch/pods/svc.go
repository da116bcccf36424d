package pods

import (
	"cmp"
	"flag"
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

// Object is an object that the job's pods need. Key is its name in the job's status: see
// Controlled.
type Object struct {
	Key    string
	Object interface {
		metav1.Object
		runtime.Object
	}
}

const (
	hostsMount = "/etc/volcano"
	// configMapBytesMax is the API server's limit for a ConfigMap, minus room for its metadata.
	configMapBytesMax = 1<<20 - 4096
	// placeholderPort is the name of the headless Service's only port. A headless Service needs no
	// port, but older cluster DNS servers skip Services without one.
	placeholderPort = "placeholder"
)

// Controlled returns the entries of the job's status for its objects besides pods: plugins and
// claims, by key.
func Controlled(job *batch.Job) map[string]string {
	out := map[string]string{}
	for name := range job.Plugins() {
		out[pluginKey(name)] = name
	}
	for i := range job.Spec.Volumes {
		name := claimName(job, i)
		out[claimKey(name)] = name
	}
	return out
}

func pluginKey(plugin string) string { return "plugin-" + plugin }
func claimKey(claim string) string   { return "volume-pvc-" + claim }

func forPlugin(plugin string, o interface {
	metav1.Object
	runtime.Object
}) Object {
	return Object{pluginKey(plugin), o}
}

// addService gives the pods resolvable names, gives each pod the names of all, and blocks ingress
// from other pods.
func (s *Set) addService(job *batch.Job, args batch.PluginArguments) error {
	var publishNotReady, noNetworkPolicy, setEnv bool
	err := s.parse(batch.SvcPlugin, args, func(f *flag.FlagSet) {
		f.BoolVar(&publishNotReady, "publish-not-ready-addresses", false, "")
		f.BoolVar(&noNetworkPolicy, "disable-network-policy", false, "")
		f.BoolVar(&setEnv, "inject-hosts-env", true, "")
	})
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
		forPlugin(batch.SvcPlugin, &corev1.ConfigMap{ObjectMeta: config, Data: hosts}),
		forPlugin(batch.SvcPlugin, &corev1.Service{ObjectMeta: own, Spec: corev1.ServiceSpec{
			ClusterIP:                corev1.ClusterIPNone,
			Selector:                 members,
			PublishNotReadyAddresses: publishNotReady,
			Ports: []corev1.ServicePort{{
				Name: placeholderPort, Port: 1, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(1),
			}},
		}}))
	if !noNetworkPolicy {
		same := metav1.LabelSelector{MatchLabels: members}
		s.objects = append(s.objects, forPlugin(batch.SvcPlugin, &networkingv1.NetworkPolicy{ObjectMeta: own, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: same,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &same}}}},
		}}))
	}
	for i := range s.tasks {
		injectService(&s.tasks[i], s.tasks, job.Name, config.Name, setEnv)
	}
	return nil
}

func injectService(t *Task, all []Task, subdomain, config string, injectEnv bool) {
	t.hostname = true
	spec := &t.base.Spec
	spec.Subdomain = cmp.Or(spec.Subdomain, subdomain)
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
	addEnv(spec, vars)
}

// hostsOf returns the content of the ConfigMap: for every task, the names of its pods in two
// formats, and their number.
func hostsOf(job *batch.Job, tasks []Task) (map[string]string, error) {
	data := make(map[string]string, 3*len(tasks))
	size := 0
	for i := range tasks {
		t := &tasks[i]
		names := t.hosts(job)
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

// hosts returns the host names under which the task's pods find each other.
func (t *Task) hosts(job *batch.Job) []string {
	if t.base.Spec.Hostname != "" {
		return []string{t.host(job, 0)}
	}
	names := make([]string, t.Replicas)
	for n := range names {
		names[n] = t.host(job, n)
	}
	return names
}

func (t *Task) host(job *batch.Job, index int) string {
	return cmp.Or(t.base.Spec.Hostname, t.PodName(index)) + "." + cmp.Or(t.base.Spec.Subdomain, job.Name)
}

func hostsKey(task string) string { return "VC_" + envName(task) + "_HOSTS" }
func numKey(task string) string   { return "VC_" + envName(task) + "_NUM" }

func envName(task string) string { return strings.ToUpper(strings.ReplaceAll(task, "-", "_")) }
