package applications

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
)

// sampleApplications is the number of applications in a sample that finds the best concurrency.
const sampleApplications = 150

// floorMax bounds the number of applications that the floor writes: more do not change its rate.
const floorMax = 1000

// copies are copies of the run's objects, to be written without a controller.
type copies struct {
	*trial
	apps  []*floorApp
	conns []*http.Client
}

// floorApp is an application at rest, with all objects that a client writes to produce it.
type floorApp struct {
	app      *oam.Application
	tracker  *unstructured.Unstructured
	revision *unstructured.Unstructured
	objects  []*unstructured.Unstructured
}

var (
	trackers  = oam.GroupVersion.WithResource("resourcetrackers")
	revisions = oam.GroupVersion.WithResource("applicationrevisions")
)

// copyForFloor copies the applications and the objects that they produced.
func (t *trial) copyForFloor(ctx context.Context) (*copies, error) {
	f := &copies{trial: t}
	byName := map[string]*floorApp{}
	for i := range min(t.cfg.Applications, floorMax) {
		app := &oam.Application{}
		if err := t.get(i).Do(ctx).Into(app); err != nil {
			return nil, err
		}
		a := &floorApp{app: app}
		byName[app.Name] = a
		f.apps = append(f.apps, a)
	}
	dyn, err := dynamic.NewForConfig(t.REST)
	if err != nil {
		return nil, err
	}
	each := func(gvr schema.GroupVersionResource, ns, selector string, take func(*unstructured.Unstructured)) error {
		list := func(o metav1.ListOptions) (runtime.Object, error) {
			return dyn.Resource(gvr).Namespace(ns).List(ctx, o)
		}
		return pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector},
			func(o runtime.Object) error {
				take(o.(*unstructured.Unstructured))
				return nil
			})
	}
	for _, gvr := range managed {
		if err := each(gvr, namespace, oam.AppNameLabel, func(u *unstructured.Unstructured) {
			if a := byName[u.GetLabels()[oam.AppNameLabel]]; a != nil {
				a.objects = append(a.objects, bare(u))
			}
		}); err != nil {
			return nil, err
		}
	}
	err = each(trackers, "", oam.AppNamespaceLabel+"="+namespace, func(u *unstructured.Unstructured) {
		if a := byName[u.GetLabels()[oam.AppNameLabel]]; a != nil {
			a.tracker = bare(u)
		}
	})
	if err != nil {
		return nil, err
	}
	return f, each(revisions, namespace, oam.AppNameLabel, func(u *unstructured.Unstructured) {
		if a := byName[u.GetLabels()[oam.AppNameLabel]]; a != nil {
			status := u.Object["status"] // a revision is created with it
			a.revision = bare(u)
			u.Object["status"] = status
		}
	})
}

func (t *trial) get(i int) *rest.Request {
	return t.apps.Get().Namespace(namespace).Resource("applications").Name(name(i))
}

// bare removes the fields of u that the server or a controller fills in, and returns u.
func bare(u *unstructured.Unstructured) *unstructured.Unstructured {
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	if annotations := u.GetAnnotations(); annotations["deployment.kubernetes.io/revision"] != "" {
		delete(annotations, "deployment.kubernetes.io/revision")
		u.SetAnnotations(annotations)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	return u
}

// measure writes samples of the copies at several concurrencies, and all copies at the best one.
func (f *copies) measure(ctx context.Context) (err error) {
	if f.conns, err = kubeclient.Connections(f.REST, 8); err != nil {
		return err
	}
	result, err := f.Floor(ctx, []localcluster.Component{localcluster.Manager}, func() error { return nil }, func(namespace string, sample bool, concurrency int) (int, time.Duration, error) {
		some := f.apps
		if sample {
			some = f.apps[:min(len(f.apps), sampleApplications)]
		}
		took, err := f.write(ctx, namespace, some, concurrency)
		return len(some), took, err
	})
	f.run.FloorSamples = result.Samples
	if err != nil {
		return err
	}
	f.run.FloorPerSecond, f.run.FloorConcurrency = round(float64(result.Units)/result.Took.Seconds()), result.Concurrency
	if deploy := f.run.deployment(); deploy != nil && deploy.PerSecond > 0 {
		f.run.Ratio = round(f.run.FloorPerSecond / deploy.PerSecond)
	}
	return nil
}

// write writes applications into a fresh namespace and returns the time until their Deployments are
// ready. Applications overlap; the writes of one application are sequential.
func (f *copies) write(ctx context.Context, namespace string, apps []*floorApp, concurrency int) (time.Duration, error) {
	if err := f.Client.CreateNamespace(ctx, namespace); err != nil {
		return 0, err
	}
	clients := make([]map[schema.GroupVersion]rest.Interface, len(f.conns))
	for i, conn := range f.conns {
		clients[i] = map[schema.GroupVersion]rest.Interface{}
		for _, gv := range []schema.GroupVersion{oam.GroupVersion, {Version: "v1"}, {Group: "apps", Version: "v1"}} {
			c, err := kubeclient.ForGroupVersion(f.REST, conn, gv, scheme.Scheme)
			if err != nil {
				return 0, err
			}
			clients[i][gv] = c
		}
	}
	f.Log.Forget()
	begin := time.Now()
	group, sending := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, a := range apps {
		group.Go(func() error { return a.write(sending, clients[i%len(clients)], namespace) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	end := time.Now()
	if err := f.Quiet(ctx); err != nil {
		return 0, err
	}
	for i := range f.Log.Events {
		if e := &f.Log.Events[i]; e.Namespace == namespace && e.Resource == "deployments.apps" && e.Sub == "status" && e.Time.After(end) {
			end = e.Time
		}
	}
	return end.Sub(begin), nil
}

func (a *floorApp) write(ctx context.Context, clients map[schema.GroupVersion]rest.Interface, namespace string) error {
	app := &oam.Application{
		TypeMeta:   metav1.TypeMeta{APIVersion: oam.GroupVersion.String(), Kind: "Application"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.app.Name}, Spec: a.app.Spec,
	}
	created := &oam.Application{}
	if err := clients[oam.GroupVersion].Post().Namespace(namespace).Resource("applications").Body(app).Do(ctx).Into(created); err != nil {
		return err
	}
	for _, u := range append([]*unstructured.Unstructured{a.tracker, a.revision}, a.objects...) {
		if u == nil {
			continue
		}
		o := u.DeepCopy()
		if owners := o.GetOwnerReferences(); len(owners) > 0 {
			owners[0].UID = created.UID
			o.SetOwnerReferences(owners)
		}
		if o.GetNamespace() != "" {
			o.SetNamespace(namespace)
		} else {
			o.SetName(strings.TrimSuffix(o.GetName(), "-bench") + "-" + namespace)
		}
		gvk := o.GroupVersionKind()
		typed, err := scheme.Scheme.New(gvk)
		if err != nil {
			return err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
			return err
		}
		resource := strings.ToLower(gvk.Kind) + "s"
		if err := clients[gvk.GroupVersion()].Post().NamespaceIfScoped(namespace, o.GetNamespace() != "").Resource(resource).Body(typed).Do(ctx).Error(); err != nil {
			return err
		}
	}
	created.Status = a.app.Status
	body, err := json.Marshal(map[string]any{
		"apiVersion": app.APIVersion, "kind": app.Kind,
		"metadata": map[string]any{"namespace": namespace, "name": app.Name, "uid": created.UID, "resourceVersion": created.ResourceVersion},
		"status":   created.Status,
	})
	if err != nil {
		return err
	}
	return clients[oam.GroupVersion].Put().Namespace(namespace).Resource("applications").Name(app.Name).SubResource("status").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}
