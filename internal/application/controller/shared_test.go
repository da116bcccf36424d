package controller_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

// doomed runs a controller that can be killed: requests under way are cut off, and waiting writes
// are dropped.
func (e *env) doomed(owns func(key string) bool) (_ *controller.Controller, kill func()) {
	e.Helper()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	writer, err := apiwriter.New(apiwriter.Config{REST: e.c.ManagerRESTConfig(), Scheme: scheme.Scheme, Logger: log, StopTimeout: time.Nanosecond})
	if err != nil {
		e.Fatal(err)
	}
	ctl, err := controller.New(controller.Config{Evaluators: newPool(e), REST: e.c.ManagerRESTConfig(), Writer: writer, Log: log, Owns: owns})
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	running.Go(func() { ctl.Run(ctx) })
	return ctl, func() { cancel(); running.Wait() }
}

func (e *env) owns(key string) bool { return len(key) > len(e.ns) && key[:len(e.ns)+1] == e.ns+"/" }

func TestApplicationsAreSharedAndTakenOver(t *testing.T) {
	e := connect(t)
	elsewhere.Store(e.ns, true)
	e.foreign()
	const apps = 12
	var dead atomic.Bool // of the first controller
	share := func(n uint32) func(string) bool {
		return func(key string) bool {
			if dead.Load() {
				return e.owns(key) && n == 1
			}
			h := fnv.New32a()
			_, _ = h.Write([]byte(key))
			return e.owns(key) && h.Sum32()%2 == n
		}
	}
	_, kill := e.doomed(share(0))
	second, stop := e.doomed(share(1))
	defer stop()
	want := map[string]string{}
	write := func(value string) {
		for i := range apps {
			name := fmt.Sprintf("app-%d", i)
			want[name] = value
			e.app(name, pair(name, value))
		}
	}
	write("one")
	e.eventually("all are deployed", func() error { return e.asWanted(want) })
	for name := range want {
		e.until(name, inPhase(oam.PhaseRunning))
	}
	// Nothing was written twice.
	if r := e.requests(); r["create configmaps"] != 2*apps || r["create resourcetrackers"] != apps {
		t.Errorf("requests %v", r)
	}
	kill()
	write("two")
	dead.Store(true)
	second.Rebalance()
	e.eventually("the other has taken over", func() error { return e.asWanted(want) })
	for name := range want {
		e.until(name, inPhase(oam.PhaseRunning))
	}
	if r := e.requests(); r["create configmaps"] != 3*apps || r["create resourcetrackers"] != 2*apps {
		t.Errorf("requests %v", r)
	}
}

// foreign creates an object that no Application owns and that must stay.
func (e *env) foreign() {
	e.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Data: map[string]string{"k": "theirs"}}
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(e.Context(), cm, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

// pair is the spec of an Application of two components, one of which depends on the other.
func pair(name, value string) string {
	return fmt.Sprintf(`
components:
- name: %[1]s-a
  type: k8s-objects
  properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-a}, data: {k: %[2]s}}]}
- name: %[1]s-b
  type: k8s-objects
  dependsOn: [%[1]s-a]
  properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-b-%[2]s}, data: {k: %[2]s}}]}
`, name, value)
}

// asWanted returns an error if the ConfigMaps that exist are not those that the Applications in
// want, by name, should have created.
func (e *env) asWanted(want map[string]string) error {
	list, err := e.core.CoreV1().ConfigMaps(e.ns).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	left := map[string]string{"foreign": "theirs"}
	for name, value := range want {
		left[name+"-a"], left[name+"-b-"+value] = value, value
	}
	for i := range list.Items {
		cm := &list.Items[i]
		value, expected := left[cm.Name]
		switch {
		case cm.Name == "kube-root-ca.crt":
		case !expected:
			return fmt.Errorf("%s should not be there", cm.Name)
		case cm.Data["k"] != value:
			return fmt.Errorf("%s is %q, not %q", cm.Name, cm.Data["k"], value)
		}
		delete(left, cm.Name)
	}
	for name := range left {
		return fmt.Errorf("%s is missing", name)
	}
	rts, err := e.dyn.Resource(trackers).List(e.Context(), metav1.ListOptions{LabelSelector: oam.AppNamespaceLabel + "=" + e.ns})
	if err != nil {
		return err
	}
	if len(rts.Items) != len(want) {
		return fmt.Errorf("%d records of %d applications", len(rts.Items), len(want))
	}
	return nil
}
