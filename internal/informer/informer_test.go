package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
)

// TestHandlersFollowTheCache checks that a handler that stores the objects it receives has the
// content of the cache, whenever it was registered, and receives nothing twice.
func TestHandlersFollowTheCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := New(nil, "configmaps", Options[*corev1.ConfigMap]{Trim: func(m *corev1.ConfigMap) { m.Data = nil }})
		in := sink[*corev1.ConfigMap]{kind}
		var followers []map[string]string // versions by name
		follow := func() {
			told, complaints := map[string]string{}, map[string]bool{}
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
				Malformed: func(m *corev1.ConfigMap, why *malformed.Error) {
					if _, known := told[m.Name]; known {
						t.Fatalf("%s cannot be decoded, and nobody said that it is gone", m.Name)
					}
					if key := m.Name + " " + m.ResourceVersion; complaints[key] || why.Fault != "of "+m.ResourceVersion {
						t.Fatalf("%s is malformed, for the second time or for another reason: %v", key, why)
					} else {
						complaints[key] = true
					}
				},
			})
		}
		follow()
		exists, version := map[string]string{}, 0
		apart := map[string]string{} // objects that cannot be decoded
		object := func(name, at string) *corev1.ConfigMap {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, ResourceVersion: at}, Data: map[string]string{"big": "x"}}
			if apart[name] == at {
				malformed.Mark(m, "ConfigMap", "of "+at)
			}
			return m
		}
		// changed records that an object has a new version, which may be malformed.
		changed := func(name, at string) {
			delete(exists, name)
			delete(apart, name)
			if rapid.Bool().Draw(t, "malformed") {
				apart[name] = at
			} else {
				exists[name] = at
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			version++
			at := strconv.Itoa(version)
			var err error
			switch rapid.SampledFrom([]string{"add", "update", "delete", "list", "bookmark", "follow"}).Draw(t, "what") {
			case "add":
				changed(name, at)
				err = in.Add(object(name, at))
			case "update":
				changed(name, at)
				err = in.Update(object(name, at))
			case "delete":
				delete(exists, name)
				delete(apart, name)
				err = in.Delete(object(name, at))
			case "list": // some are gone, some have changed, some are unchanged
				var list []any
				for _, n := range []string{"a", "b", "c", "d"} {
					was, existed := exists[n]
					wasApart, existedApart := apart[n]
					delete(exists, n)
					delete(apart, n)
					switch how := rapid.IntRange(0, 2).Draw(t, "how"); {
					case how == 0 && existed:
						exists[n] = was
					case how == 0 && existedApart:
						apart[n] = wasApart
					case how == 1:
						changed(n, at)
					default:
						continue
					}
					list = append(list, object(n, exists[n]+apart[n]))
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
			for _, n := range []string{"a", "b", "c", "d"} {
				fault := ""
				if why := kind.Malformed("a", n); why != nil {
					fault = why.Error()
				}
				if want := apart[n]; want != "" && fault != "ConfigMap a/"+n+" is malformed: of "+want || want == "" && fault != "" {
					t.Fatalf("%s: %q, want version %q to be malformed", n, fault, want)
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

// TestWatchesCutShortAreNoted checks that a watch requested soon after the previous one counts the
// previous one as ended by the server. A watch requested later means that the previous one reached
// its timeout.
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
			// A watch that was cut short counts once, however many attempts the next watch takes.
			{time.Second, refused, 3}, {time.Second, refused, 3}, {time.Second, nil, 3}, {time.Second, nil, 4},
		} {
			time.Sleep(step.after)
			refusal = step.refusal
			if _, err := ask(t.Context(), metav1.ListOptions{}); !errors.Is(err, refusal) {
				t.Fatalf("got %v, want %v", err, refusal)
			}
			if asked != i+1 || short != step.short {
				t.Fatalf("at step %d, after %v: asked %d times, %d of them cut short; want %d", i, step.after, asked, short, step.short)
			}
		}
	})
}

// TestTheWatchOfPodsMayEnd checks that the end of a watch is reported, except for the watch of pods: the
// manager's own creates end it.
func TestTheWatchOfPodsMayEnd(t *testing.T) {
	s, err := NewSet(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	s.OnCutShort(func() { told++ })
	if s.Pods.cutShort != nil {
		t.Error("the end of the watch of pods is reported")
	}
	for _, f := range []func(){s.Jobs.cutShort, s.PodGroups.cutShort, s.Nodes.cutShort, s.Workflows.cutShort} {
		f()
	}
	if told != 4 {
		t.Errorf("%d of 4 ends of watches were reported", told)
	}
}

// TestTheFirstListIsOfWhatWasWrittenLast checks that a manager that begins to lead does not start
// from the old state of a server's cache.
func TestTheFirstListIsOfWhatWasWrittenLast(t *testing.T) {
	for version, want := range map[string]string{"0": "", "": "", "17": "17"} {
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("resourceVersion"))
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"18"},"items":[]}`)
		}))
		client, err := kubeclient.ForGroupVersion(&rest.Config{Host: server.URL}, nil, corev1.SchemeGroupVersion, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ListWatch(client, "configmaps", "", "", "").ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version}); err != nil {
			t.Fatal(err)
		}
		server.Close()
		if len(asked) != 1 || asked[0] != want {
			t.Errorf("a list of version %q asks for %q, want %q", version, asked, want)
		}
	}
}
