package resource_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
	"lockstep.dev/lockstep/internal/workflow/resource"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// place is a namespace, with the administrator's client for it.
type place struct {
	t    *testing.T
	cfg  *rest.Config
	core kubernetes.Interface
	name string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	core := kubernetes.NewForConfigOrDie(cfg)
	return &place{t, cfg, core, localtest.Namespace(t, core)}
}

// client returns what a pod of the namespace with this token has.
func (p *place) client(base, token string, ca []byte) *incluster.Client {
	p.t.Helper()
	dir := p.t.TempDir()
	for name, data := range map[string][]byte{"namespace": []byte(p.name), "token": []byte(token), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	c, err := incluster.NewFor(base, dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *place) admin() *incluster.Client {
	p.t.Helper()
	return p.client(p.cfg.Host, p.cfg.BearerToken, p.cfg.CAData)
}

// act carries out a plan within ten seconds.
func (p *place) act(client *incluster.Client, plan execapi.ResourcePlan) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	return resource.Act(ctx, client, &plan, io.Discard)
}

// configMap returns the manifest of a ConfigMap.
func configMap(metadata, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {test: \"\"}, %s}\ndata: {%s}\n", metadata, data)
}

func TestEachObjectHasToMeetTheConditions(t *testing.T) {
	const done, failed = "state: done", "state: failed"
	for name, c := range map[string]struct{ first, last, fails string }{
		"both are done":        {first: done, last: done},
		"the first has failed": {first: failed, last: done, fails: "failure condition"},
		"the last has failed":  {first: done, last: failed, fails: "failure condition"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			out, err := p.act(p.admin(), execapi.ResourcePlan{
				Action: "create", Manifest: configMap("name: first", c.first) + "---\n" + configMap("name: last", c.last),
				Success: "data.state=done", Failure: "data.state=failed",
				Parameters: []execapi.Field{{Name: "of", JSONPath: "{.metadata.name}"}},
			})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want %q", err, c.fails)
				}
				return
			}
			if err != nil || out["of"] != "last" {
				t.Errorf("outputs %v, error %v", out, err)
			}
		})
	}
}

