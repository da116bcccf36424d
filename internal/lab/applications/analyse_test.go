package applications

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestAPhaseInWhichNothingRanTakesNoTime(t *testing.T) {
	now := time.Now()
	log := observe.Log{Events: []analyse.Event{{Resource: "applications.core.oam.dev", Verb: "create", Actor: observe.Client,
		Namespace: namespace, Name: name(0), Code: 201, Received: now, Time: now}}}
	trial := &trial{Trial: &series.Trial{Observed: &rig.Observed{Log: log}}, cfg: &Config{Applications: 1}}
	p := &Phase{}
	if trial.timings(p, 1, "create"); p.Done != 0 || p.Seconds != 0 {
		t.Errorf("%d applications ran in %v s", p.Done, p.Seconds)
	}
}

func TestObjectsOfAllClustersAreFound(t *testing.T) {
	hub, far := localtest.Start(t).RESTConfig(), localtest.Start(t).RESTConfig()
	client := kubernetes.NewForConfigOrDie(far)
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{oam.AppNameLabel: "a"}}}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), left, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	trial := &trial{Trial: &series.Trial{Observed: &rig.Observed{REST: hub}}, far: []*managedCluster{{name: "far-00", rest: far}}}
	if got, err := trial.objects(t.Context()); err != nil || !slices.Equal(got, []string{"configmaps left"}) {
		t.Errorf("objects %v, error %v", got, err)
	}
}
