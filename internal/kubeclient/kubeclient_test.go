package kubeclient

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

const twoContexts = `apiVersion: v1
kind: Config
clusters:
- {name: a, cluster: {server: "https://a.example:6443"}}
- {name: b, cluster: {server: "https://b.example:6443"}}
users:
- {name: u, user: {token: secret}}
contexts:
- {name: in-a, context: {cluster: a, user: u}}
- {name: in-b, context: {cluster: b, user: u}}
current-context: in-a
`

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", twoContexts)
	empty := write("empty", "")
	broken := write("broken", "apiVersion: [")
	noCurrent := write("nocurrent", strings.Replace(twoContexts, "current-context: in-a\n", "", 1))

	for _, c := range []struct {
		name, path, context, env string
		host, err                string
	}{
		{name: "an explicit file's current context", path: good, host: "https://a.example:6443"},
		{name: "an explicit context", path: good, context: "in-b", host: "https://b.example:6443"},
		{name: "the environment's file", env: good, host: "https://a.example:6443"},
		{name: "the explicit file wins over the environment's", path: good, env: broken, host: "https://a.example:6443"},
		{name: "the first of several files in the environment decides", env: good + ":" + noCurrent, host: "https://a.example:6443"},
		{name: "a missing explicit file is named", path: filepath.Join(dir, "none"), err: "none does not exist"},
		{name: "an unknown context lists the known ones", path: good, context: "x", err: `context "x" not found in ` + good + "; it has: in-a, in-b"},
		{name: "an empty file is an error, not localhost", path: empty, err: "is empty"},
		{name: "a broken file is named", path: broken, err: broken},
		{name: "no current context says what to give", path: noCurrent, err: "give --context"},
		{name: "nothing at all says what to do", env: filepath.Join(dir, "none"), err: "lockstep up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			cfg, err := Load(c.path, c.context)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Host != c.host {
				t.Errorf("host is %s, want %s", cfg.Host, c.host)
			}
			if cfg.QPS >= 0 || cfg.RateLimiter != nil {
				t.Errorf("rate limited at %v/s: the client must leave limits to the server", cfg.QPS)
			}
		})
	}
}

func TestEncodingFollowsWhoServesTheType(t *testing.T) {
	for gv, want := range map[schema.GroupVersion]string{
		corev1.SchemeGroupVersion:                           protobufType,
		{Group: "coordination.k8s.io", Version: "v1"}:       protobufType,
		{Group: "batch.volcano.sh", Version: "v1alpha1"}:    jsonType,
		{Group: "apiextensions.k8s.io", Version: "v1beta1"}: jsonType,
	} {
		if got := ContentType(gv); got != want {
			t.Errorf("%s goes as %s, want %s", gv, got, want)
		}
	}
}

func TestConnectionsAreNotShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(twoContexts), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	conns, err := Connections(cfg, 3)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[any]bool{}
	for _, c := range conns {
		if seen[c.Transport] {
			t.Fatal("two of Connections share a transport, and so a TCP connection")
		}
		seen[c.Transport] = true
		if _, err := ForGroupVersion(cfg, c, corev1.SchemeGroupVersion, scheme.Scheme); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ForGroupVersion(cfg, nil, schema.GroupVersion{Group: "none.example", Version: "v1"}, scheme.Scheme); err == nil {
		t.Error("a group without types in the scheme must be an error")
	}
}
