package workflows

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

func TestMain(m *testing.M) {
	managertest.Main(m, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{
		Count: 8, CPU: "32", Memory: "64Gi", Pods: 500,
	}), localtest.WithInstall())
}

// cluster is a namespace of a cluster with a manager.
type cluster struct {
	*testing.T
	ns        string
	core      kubernetes.Interface
	client    *workflows.Client
	workflows rest.Interface
}

// TestCluster runs every case on a real API server, all at the same time.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a cluster")
	}
	e := startCluster(t)
	var all []*testCase
	for _, f := range load(t) {
		all = append(all, f.cases...)
	}
	for _, c := range all { // the objects that workflows refer to must exist first
		e.prepare(c)
	}
	began := time.Now()
	var started sync.WaitGroup
	gate := make(chan struct{}, 16) // limits the number of concurrent clients
	for _, c := range all {
		started.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if err := e.create(c.objects[0]); err != nil {
				e.Errorf("%s: %v", c.name, err)
			}
		})
	}
	started.Wait()
	if e.Failed() {
		return
	}
	t.Run("case", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				own := *e
				own.T = t
				own.follow(c)
			})
		}
	})
	t.Logf("%d workflows in %s", len(all), time.Since(began).Round(time.Second))
}

func startCluster(t *testing.T) *cluster {
	c := localtest.Shared(t)
	managertest.Start(t, c)
	client, err := workflows.New(c.RESTConfig(), false)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := kubeclient.ForGroupVersion(c.RESTConfig(), nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	e := &cluster{T: t, core: kubernetes.NewForConfigOrDie(c.RESTConfig()), client: client, workflows: raw}
	e.ns = localtest.NamespaceForPods(t, e.core)
	return e
}

// eventually waits until f returns nil.
func (e *cluster) eventually(what string, f func() error) {
	e.Helper()
	localtest.Eventually(e, what, f)
}

// prepare creates the objects that the case's workflow refers to.
func (e *cluster) prepare(c *testCase) {
	for _, cm := range c.configMaps {
		if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(e.Context(), cm, metav1.CreateOptions{}); err != nil {
			e.Fatal(err)
		}
	}
	for _, o := range c.objects[1:] {
		if err := e.create(o); err != nil {
			e.Fatalf("%s: %v", c.name, err)
		}
	}
}

// create sends an object as it was written, with strict validation.
func (e *cluster) create(object map[string]any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	kind := object["kind"].(string)
	request := e.workflows.Post().Resource(strings.ToLower(kind) + "s")
	if kind != "ClusterWorkflowTemplate" {
		request = request.Namespace(e.ns)
	}
	return request.Param("fieldValidation", "Strict").Body(body).Do(e.Context()).Error()
}

// follow performs the actions of users, waits for the end and compares the nodes.
func (e *cluster) follow(c *testCase) {
	for _, action := range c.actions {
		e.act(c, strings.Fields(action))
	}
	var w *wf.Workflow
	e.eventually("the end", func() error {
		var err error
		if w, err = e.client.Get(e.Context(), e.ns, c.name); err == nil && !w.Status.Phase.Completed() {
			err = fmt.Errorf("it is %q\n%s", w.Status.Phase, table(w))
		}
		return err
	})
	for _, fault := range contractFaults(w) {
		e.Error(fault)
	}
	if w.Labels[wf.LabelCompleted] != "true" || w.Labels[wf.LabelPhase] != string(w.Status.Phase) || w.Annotations[wf.AnnotationPodNameFormat] != "v2" {
		e.Errorf("labels %v, annotations %v", w.Labels, w.Annotations)
	}
	got := strings.ReplaceAll(table(w), e.ns+"/", "default/")
	if got != c.want {
		text, _ := json.Marshal(w.Status)
		e.Errorf("got\n%s\nwant\n%s\nstatus %s", got, c.want, text)
	}
}

func (e *cluster) act(c *testCase, words []string) {
	ctx := e.Context()
	choose := func(node string) workflows.NodeChange {
		id := nodeID(c.name, node)
		return workflows.NodeChange{Match: func(n *wf.NodeStatus) bool { return n.ID == id }}
	}
	var err error
	switch words[0] {
	case "wait":
		e.eventually(strings.Join(words, " "), func() error {
			w, err := e.client.Get(ctx, e.ns, c.name)
			if err != nil {
				return err
			}
			return waited(w, words[1:])
		})
	case "stop":
		err = e.client.Stop(ctx, e.ns, c.name)
	case "terminate":
		err = e.client.Terminate(ctx, e.ns, c.name)
	case "suspend":
		err = e.client.Suspend(ctx, e.ns, c.name)
	case "unsuspend":
		err = e.client.Resume(ctx, e.ns, c.name, workflows.NodeChange{})
	case "resume":
		change := choose(words[1])
		change.Outputs = map[string]string{}
		for _, word := range words[2:] {
			key, value, _ := strings.Cut(word, "=")
			change.Outputs[key] = value
		}
		err = e.client.Resume(ctx, e.ns, c.name, change)
	case "fail":
		change := choose(words[1])
		change.Phase, change.Message = wf.PhaseFailed, strings.Join(words[2:], " ")
		err = e.client.SetNode(ctx, e.ns, c.name, change)
	case "edit":
		var patch []byte
		if patch, err = yaml.YAMLToJSON([]byte("spec: " + strings.Join(words[1:], " "))); err == nil {
			err = e.workflows.Patch(types.MergePatchType).Namespace(e.ns).Resource("workflows").Name(c.name).Body(patch).Do(ctx).Error()
		}
	case "delete-pod":
		n := wf.NodeStatus{}
		if w, err := e.client.Get(ctx, e.ns, c.name); err == nil {
			n = w.Status.Nodes[nodeID(c.name, words[1])]
		}
		err = e.client.DeletePods(ctx, e.ns, []string{wf.PodName(c.name, n.Name, n.TemplateName)})
	default:
		e.Fatalf("unknown action %q", words)
	}
	if err != nil {
		e.Fatalf("%q: %v", words, err)
	}
}
