package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// FuzzEngine runs arbitrary manifests with pods that alternately succeed and fail. The engine must
// not panic and must end; when no pod, pause or timer is left the workflow must be over.
func FuzzEngine(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		manifest, _, _ := strings.Cut(string(content), "\n----")
		f.Add([]byte(manifest), uint8(len(manifest)))
	}
	f.Fuzz(func(t *testing.T, manifest []byte, fail uint8) {
		if len(manifest) > 4096 {
			return
		}
		w := &wf.Workflow{}
		if yaml.UnmarshalStrict(manifest, w) != nil || w.Name == "" {
			return
		}
		w.Status = wf.WorkflowStatus{}
		w.Spec.Suspend = nil
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		run := New(w, Config{MaxNodes: 2000, Evaluate: template.InProcess()})
		result := run.Step(now)
		one := "1"
		table := locks.New(func(string, string, string) (int, error) { return 1, nil })
		for turn := 0; turn < 300 && !w.Status.Phase.Completed(); turn++ {
			var events []Event
			for _, holder := range result.Unlock {
				for _, s := range table.Release(holder) {
					events = append(events, LockState(s))
				}
			}
			for _, l := range result.Locks {
				events = append(events, LockState(table.Acquire(l)))
			}
			for _, l := range result.Lookups {
				events = append(events, l.Answer("", false))
			}
			for _, id := range sortedKeys(w.Status.Nodes) {
				n := w.Status.Nodes[id]
				switch {
				case n.Phase.Fulfilled():
				case n.Type == wf.NodePod || n.Type == wf.NodeHTTP:
					state := PodState{NodeID: id, Phase: corev1.PodSucceeded, Outputs: &wf.Outputs{Result: &one}}
					if (uint8(turn)+fail)%5 == 0 {
						state.Phase = corev1.PodFailed
					} else if run.nodes[id].leaf != nil && run.nodes[id].leaf.daemon() {
						state.Phase, state.Ready = corev1.PodRunning, true
					}
					events = append(events, state)
				case n.Type == wf.NodeSuspend:
					events = append(events, Resume{NodeID: id})
				}
			}
			if !result.Wake.IsZero() {
				now = result.Wake
			} else if len(events) == 0 {
				t.Fatalf("nothing is left to happen, and the workflow is %s", w.Status.Phase)
			}
			result = run.Step(now, events...)
		}
	})
}
