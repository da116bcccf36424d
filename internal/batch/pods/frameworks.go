package pods

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// task returns the task with that name, or nil.
func (s *Set) task(name string) *Task {
	if i := slices.IndexFunc(s.tasks, func(t Task) bool { return t.Name == name }); i >= 0 {
		return &s.tasks[i]
	}
	return nil
}

// openPort adds a port to the containers that do not have it.
func openPort(t *Task, name string, port int) {
	t.base.Spec.Containers = mapContainers(t.base.Spec.Containers, func(c *corev1.Container) { addPort(c, name, port) })
}

func addPort(c *corev1.Container, name string, port int) {
	if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == int32(port) || p.Name == name }) {
		return
	}
	c.Ports = append(c.Ports[:len(c.Ports):len(c.Ports)], corev1.ContainerPort{
		Name: name, ContainerPort: int32(port), Protocol: corev1.ProtocolTCP,
	})
}

// addPyTorch sets the environment of torch.distributed: the address of the first master, the world
// size and each pod's rank. A job without a master is unchanged.
func (s *Set) addPyTorch(job *batch.Job, args batch.PluginArguments) error {
	var masterName, workerName, image string
	var port, seconds int
	var wait bool
	err := s.parse(batch.PyTorchPlugin, args, func(f *flag.FlagSet) {
		f.StringVar(&masterName, "master", "master", "")
		f.StringVar(&workerName, "worker", "worker", "")
		f.IntVar(&port, "port", 23456, "")
		f.BoolVar(&wait, "wait-master-enabled", false, "")
		f.IntVar(&seconds, "wait-master-timeout", 300, "")
		f.StringVar(&image, "wait-master-image", "busybox:1.36.1", "")
	}, &port)
	master := s.task(masterName)
	if err != nil || master == nil {
		return err
	}
	address, world := master.host(job, 0), strconv.Itoa(int(job.TotalReplicas()))
	for i := range s.tasks {
		t := &s.tasks[i]
		isMaster, isWorker := t.Name == masterName, t.Name == workerName
		if isMaster || isWorker {
			openPort(t, "pytorchjob-port", port)
		}
		if isWorker && wait {
			script := fmt.Sprintf("n=0; until nc -z -w 2 %s %d; do n=$((n+1)); "+
				"if [ $n -ge %d ]; then echo the master is not there after %d s; exit 1; fi; sleep 1; done", address, port, seconds, seconds)
			in := t.base.Spec.InitContainers
			t.base.Spec.InitContainers = append(in[:len(in):len(in)], corev1.Container{
				Name: "wait-for-master", Image: image, Command: []string{"sh", "-c", script},
			})
		}
		t.each = append(t.each, func(p *corev1.Pod, index int) {
			vars := []corev1.EnvVar{
				{Name: "MASTER_ADDR", Value: address}, {Name: "MASTER_PORT", Value: strconv.Itoa(port)}, {Name: "WORLD_SIZE", Value: world},
			}
			switch {
			case isMaster:
				vars = append(vars, corev1.EnvVar{Name: "RANK", Value: "0"})
			case isWorker:
				vars = append(vars, corev1.EnvVar{Name: "RANK", Value: strconv.Itoa(index + 1)})
			}
			p.Spec.Containers = withEnv(p.Spec.Containers, vars)
		})
	}
	return nil
}

// addTensorFlow sets TF_CONFIG in each pod of a distributed TensorFlow job: the hosts of all tasks,
// and the pod's own role and index. A job of a single pod needs none.
func (s *Set) addTensorFlow(job *batch.Job, args batch.PluginArguments) error {
	names := map[string]*string{}
	var port int
	err := s.parse(batch.TensorFlowPlugin, args, func(f *flag.FlagSet) {
		for _, role := range []string{"ps", "worker", "chief", "evaluator"} {
			names[role] = f.String(role, role, "")
		}
		f.IntVar(&port, "port", 2222, "")
	}, &port)
	if err != nil || job.TotalReplicas() <= 1 {
		return err
	}
	hosts := map[string][]string{}
	for role, name := range names {
		if t := s.task(*name); t != nil && t.Replicas > 0 {
			for _, h := range t.hosts(job) {
				hosts[role] = append(hosts[role], h+":"+strconv.Itoa(port))
			}
		}
	}
	cluster, err := json.Marshal(hosts) // the same in every pod
	if err != nil {
		return err
	}
	for role, name := range names {
		t := s.task(*name)
		if t == nil {
			continue
		}
		t.each = append(t.each, func(p *corev1.Pod, index int) {
			value := fmt.Sprintf(`{"cluster":%s,"task":{"type":%q,"index":%d}}`, cluster, role, index)
			p.Spec.Containers = withEnv(p.Spec.Containers, []corev1.EnvVar{{Name: "TF_CONFIG", Value: value}})
		})
	}
	return nil
}

// addMPI gives the master the list of its workers, and opens the port of sshd.
func (s *Set) addMPI(job *batch.Job, args batch.PluginArguments) error {
	var masterName, workerName string
	var port int
	err := s.parse(batch.MPIPlugin, args, func(f *flag.FlagSet) {
		f.StringVar(&masterName, "master", "master", "")
		f.StringVar(&workerName, "worker", "worker", "")
		f.IntVar(&port, "port", 22, "")
	}, &port)
	if err != nil {
		return err
	}
	master, worker := s.task(masterName), s.task(workerName)
	for _, t := range []*Task{master, worker} {
		if t != nil {
			openPort(t, "mpijob-port", port)
		}
	}
	if master != nil && worker != nil {
		vars := []corev1.EnvVar{{Name: "MPI_HOST", Value: strings.Join(worker.hosts(job), ",")}}
		addEnv(&master.base.Spec, vars)
	}
	return nil
}

// addRay starts a Ray cluster in the named containers, replacing their commands, and adds a Service
// for the head.
func (s *Set) addRay(job *batch.Job, args batch.PluginArguments) error {
	var headName, headContainer, workerName, workerContainer string
	var port, dashboard, client int
	err := s.parse(batch.RayPlugin, args, func(f *flag.FlagSet) {
		f.StringVar(&headName, "head", "head", "")
		f.StringVar(&headContainer, "headContainer", "head", "")
		f.StringVar(&workerName, "worker", "worker", "")
		f.StringVar(&workerContainer, "workerContainer", "worker", "")
		f.IntVar(&port, "port", 6379, "")
		f.IntVar(&dashboard, "dashboardPort", 8265, "")
		f.IntVar(&client, "clientPort", 10001, "")
	}, &port, &dashboard, &client)
	head := s.task(headName)
	if err != nil || head == nil {
		return err
	}
	ports := []struct {
		name string
		port int
	}{{"gcs", port}, {"dashboard", dashboard}, {"client-server", client}}

	start := func(t *Task, container, command string, change func(*corev1.Container)) {
		t.base.Spec.Containers = mapContainers(t.base.Spec.Containers, func(c *corev1.Container) {
			if c.Name == container {
				c.Command, c.Args = []string{"sh", "-c", command}, nil
				change(c)
			}
		})
	}
	start(head, headContainer, fmt.Sprintf("ray start --head --block --dashboard-host=0.0.0.0 --port=%d --dashboard-port=%d --ray-client-server-port=%d",
		port, dashboard, client), func(c *corev1.Container) {
		for _, p := range ports {
			addPort(c, p.name, p.port)
		}
	})
	if worker := s.task(workerName); worker != nil {
		start(worker, workerContainer, fmt.Sprintf("ray start --block --address=%s:%d", head.host(job, 0), port), func(*corev1.Container) {})
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name + "-head-svc", OwnerReferences: ownerOf(job)},
		Spec: corev1.ServiceSpec{Selector: map[string]string{
			batch.JobNameKey: job.Name, batch.JobNamespaceKey: job.Namespace, batch.TaskSpecKey: headName,
		}},
	}
	for _, p := range ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: p.name, Port: int32(p.port), TargetPort: intstr.FromInt(p.port), Protocol: corev1.ProtocolTCP,
		})
	}
	s.objects = append(s.objects, forPlugin(batch.RayPlugin, service))
	return nil
}

// rankAnnotation is the annotation in which Ascend's device plugin looks for a pod's rank.
const rankAnnotation = "hccl/rankIndex"

// addHCCLRank sets each pod's rank: masters are numbered first, then workers. A container's own
// RANK takes precedence.
func (s *Set) addHCCLRank(_ *batch.Job, args batch.PluginArguments) error {
	var masterName, workerName string
	err := s.parse(batch.HCCLRankPlugin, args, func(f *flag.FlagSet) {
		f.StringVar(&masterName, "master", "master", "")
		f.StringVar(&workerName, "worker", "worker", "")
	})
	if err != nil {
		return err
	}
	masters := 0
	if m := s.task(masterName); m != nil {
		masters = int(m.Replicas)
	}
	for i := range s.tasks {
		t := &s.tasks[i]
		t.each = append(t.each, func(p *corev1.Pod, index int) {
			rank := ownRank(p)
			switch {
			case rank != "":
			case t.Name == masterName:
				rank = strconv.Itoa(index)
			case t.Name == workerName:
				rank = strconv.Itoa(masters + index)
			default:
				return
			}
			p.Annotations[rankAnnotation] = rank
		})
	}
	return nil
}

func ownRank(p *corev1.Pod) string {
	for i := range p.Spec.Containers {
		for _, v := range p.Spec.Containers[i].Env {
			if v.Name == "RANK" && v.Value != "" {
				return v.Value
			}
		}
	}
	return ""
}
