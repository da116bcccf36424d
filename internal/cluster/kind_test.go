package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"
)

// TestHandlersFollowTheCache: whoever keeps what it is told has what the cache has, whenever it began to listen, and is told
// nothing twice.
func TestHandlersFollowTheCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := newKind[*corev1.ConfigMap](nil, "configmaps", &corev1.ConfigMap{}, func(m *corev1.ConfigMap) { m.Data = nil }, nil)
		in := sink[*corev1.ConfigMap]{kind}
		var followers []map[string]string // versions by name
		follow := func() {
			told := map[string]string{}
			followers = append(followers, told)
			kind.Handle(Handler[*corev1.ConfigMap]{
				Added: func(m *corev1.ConfigMap) {
					if at, known := told[m.Name]; known {
						t.Fatalf("told twice of %s, first at %s", m.Name, at)
					}
					told[m.Name] = m.ResourceVersion
				},
				Updated: func(old, m *corev1.ConfigMap) {
					if told[m.Name] != old.ResourceVersion || old.ResourceVersion == m.ResourceVersion {
						t.Fatalf("%s was said to be at %q, and goes from %q to %q", m.Name, told[m.Name], old.ResourceVersion, m.ResourceVersion)
					}
					told[m.Name] = m.ResourceVersion
				},
				Deleted: func(m *corev1.ConfigMap) {
					if _, known := told[m.Name]; !known {
						t.Fatalf("%s is gone, of which nothing was said", m.Name)
					}
					delete(told, m.Name)
				},
			})
		}
		follow()
		exists, version := map[string]string{}, 0
		object := func(name, at string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, ResourceVersion: at}, Data: map[string]string{"big": "x"}}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			version++
			at := strconv.Itoa(version)
			var err error
			switch rapid.SampledFrom([]string{"add", "update", "delete", "list", "bookmark", "follow"}).Draw(t, "what") {
			case "add":
				exists[name] = at
				err = in.Add(object(name, at))
			case "update":
				exists[name] = at
				err = in.Update(object(name, at))
			case "delete":
				delete(exists, name)
				err = in.Delete(object(name, at))
			case "list": // some are gone, some have changed, some are as they were
				var list []any
				for _, n := range []string{"a", "b", "c", "d"} {
					was, existed := exists[n]
					delete(exists, n)
					switch how := rapid.IntRange(0, 2).Draw(t, "how"); {
					case how == 0 && existed:
						exists[n] = was
					case how == 1:
						exists[n] = at
					default:
						continue
					}
					list = append(list, object(n, exists[n]))
				}
				err = in.Replace(list, at)
			case "bookmark":
				err = in.Bookmark(at)
			case "follow":
				follow()
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if seen := kind.SeenVersion(); seen != at {
				t.Fatalf("seen %s, want %s", seen, at)
			}
			has := map[string]string{}
			for _, m := range kind.List() {
				has[m.Name] = m.ResourceVersion
				if m.Data != nil {
					t.Fatalf("%s was stored whole", m.Name)
				}
			}
			for i, told := range append(followers, has) {
				if !maps.Equal(told, exists) {
					t.Fatalf("%s has %v, want %v", fmt.Sprint("follower ", i), told, exists)
				}
			}
		}
	})
}

// TestWatchesCutShortAreNoted: a watch that is asked for anew soon after the one before was ended by the server; later it has come
// to the end of its time.
func TestWatchesCutShortAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, short := 0, 0
		var refusal error
		ask := noting(func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			asked++
			return watch.NewEmptyWatch(), refusal
		}, func() { short++ })
		refused := errors.New("too many requests")
		for i, step := range []struct {
			after   time.Duration
			refusal error
			short   int
		}{
			{0, refused, 0}, {time.Second, nil, 0}, {2 * time.Second, nil, 1}, {5 * time.Minute, nil, 1}, {10 * time.Minute, nil, 1}, {time.Minute, nil, 2},
			// One that was cut short counts once, however often it takes to get another.
			{time.Second, refused, 3}, {time.Second, refused, 3}, {time.Second, nil, 3}, {time.Second, nil, 4},
		} {
			time.Sleep(step.after)
			refusal = step.refusal
			if _, err := ask(t.Context(), metav1.ListOptions{}); err != refusal {
				t.Fatalf("got %v, want %v", err, refusal)
			}
			if asked != i+1 || short != step.short {
				t.Fatalf("at step %d, after %v: asked %d times, %d of them cut short; want %d", i, step.after, asked, short, step.short)
			}
		}
	})
}
