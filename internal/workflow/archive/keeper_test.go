package archive

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

func TestKeeper(t *testing.T) {
	for name, source := range databases(t) {
		t.Run(name, func(t *testing.T) { testKeeper(t, source, name) })
	}
}

func testKeeper(t *testing.T, source, prefix string) {
	cfg := localtest.Shared(t).RESTConfig()
	client, err := kubeclient.ForGroupVersion(cfg, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	target := &Target{Open: func(ctx context.Context) (*DB, error) { return Open(ctx, source) }, TTL: time.Hour, InstanceID: "mine"}
	log := slog.New(slog.DiscardHandler)
	writer, err := apiwriter.New(apiwriter.Config{REST: cfg, Scheme: scheme.Scheme, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	informers, err := informer.NewWorkflowSet(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if target.Labels, err = labels.Parse("keep!=no,of=" + prefix); err != nil {
		t.Fatal(err)
	}
	keeper, err := NewKeeper(KeeperConfig{Target: func() *Target { return target }, REST: cfg, Informers: informers, Writer: writer, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = writer.Run(ctx) })
	informers.Start(ctx)
	defer informers.Wait()
	defer cancel()
	running.Go(func() { keeper.Run(ctx) })

	create := func(name, keep string) *wf.Workflow {
		w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: prefix + "-" + name, Labels: map[string]string{"keep": keep, "of": prefix, wf.LabelInstanceID: "mine"}},
			Spec: wf.WorkflowSpec{Entrypoint: "main", Templates: []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}}}
		out := &wf.Workflow{}
		if err := client.Post().Namespace("default").Resource("workflows").Body(w).Do(ctx).Into(out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	finish := func(w *wf.Workflow) {
		data, _ := json.Marshal(map[string]any{
			"metadata": map[string]any{"labels": map[string]string{wf.LabelCompleted: "true", wf.LabelPhase: "Succeeded"}},
			"status":   map[string]any{"phase": "Succeeded", "nodes": map[string]any{"n": map[string]any{"id": "n", "name": "n", "type": "Suspend", "phase": "Succeeded"}}},
		})
		if err := client.Patch(types.MergePatchType).Namespace("default").Resource("workflows").Name(w.Name).Body(data).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	marked := func(w *wf.Workflow) bool {
		now := &wf.Workflow{}
		if err := client.Get().Namespace("default").Resource("workflows").Name(w.Name).Do(ctx).Into(now); err != nil {
			t.Fatal(err)
		}
		// Argo's server does not list workflows with this label, but reads its own archive for them.
		if hidden := now.Labels[wf.LabelArchivingStatus] == Archived; hidden && !db.Shared() {
			t.Errorf("%s is hidden from Argo's lists", w.Name)
		}
		return Marked(now)
	}
	running1, excluded := create("running", ""), create("excluded", "no")
	finish(excluded)
	// A workflow of another instance of the controller is that one's to archive.
	other := create("other", "yes")
	if err := client.Patch(types.MergePatchType).Namespace("default").Resource("workflows").Name(other.Name).
		Body([]byte(`{"metadata":{"labels":{"` + wf.LabelInstanceID + `":"theirs"}}}`)).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	finish(other)
	var done []*wf.Workflow
	for i := range 100 {
		w := create(fmt.Sprintf("done-%d", i), "yes")
		finish(w)
		done = append(done, w)
	}
	for _, w := range done {
		err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return marked(w), nil
		})
		if err != nil {
			t.Fatalf("%s is not archived: %v", w.Name, err)
		}
		got, err := db.Get(ctx, string(w.UID))
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Nodes["n"].Phase != wf.PhaseSucceeded || len(got.Spec.Templates) != 1 || (got.Labels[wf.LabelArchivingStatus] == Persisted) != db.Shared() {
			t.Errorf("archived %+v", got)
		}
	}
	for _, w := range []*wf.Workflow{running1, excluded, other} {
		if marked(w) {
			t.Errorf("%s is marked", w.Name)
		}
		if got, err := db.Get(ctx, string(w.UID)); err == nil {
			t.Errorf("%s is archived: %+v", w.Name, got)
		}
	}
}
