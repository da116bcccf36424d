package manager_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
)

// TestMultiTenantManagersNeedWhatRecordsAuthors: without it an application could say that anybody wrote it.
func TestMultiTenantManagersNeedWhatRecordsAuthors(t *testing.T) {
	for _, v := range []struct {
		name string
		args []string
		opts install.Options
		drop func(context.Context, kubernetes.Interface) error
		want string // in the error; empty: it runs
	}{
		{name: "installed", opts: install.Options{MultiTenant: true}},
		{name: "without the rights", want: "forbidden"},
		{name: "old API server", args: []string{"--emulated-version=kube=1.33"}, want: "MutatingAdmissionPolicy " + config.AuthorsPolicy},
		{name: "without a binding", opts: install.Options{MultiTenant: true}, want: "ValidatingAdmissionPolicyBinding " + config.AuthorsPolicy,
			drop: func(ctx context.Context, c kubernetes.Interface) error {
				return c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, config.AuthorsPolicy, metav1.DeleteOptions{})
			}},
	} {
		t.Run(v.name, func(t *testing.T) {
			c := localtest.Start(t, localtest.WithConfig(func(c *localcluster.Config) {
				c.Install = install.With(v.opts)
				c.ExtraArgs = map[localcluster.Component][]string{localcluster.APIServer: v.args}
			}))
			rest := c.ManagerRESTConfig()
			if len(v.args) > 0 {
				rest = c.RESTConfig() // somebody gave it all rights by hand
			}
			if v.drop != nil {
				admin, err := kubeclient.Clientset(c.RESTConfig())
				if err != nil {
					t.Fatal(err)
				}
				if err := v.drop(t.Context(), admin); err != nil {
					t.Fatal(err)
				}
			}
			managing := &said{text: "managing", heard: make(chan struct{})}
			m, err := manager.New(manager.Config{REST: rest, MultiTenant: true, Log: slog.New(slog.NewTextHandler(managing, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			ran := false
			select {
			case <-managing.heard:
				ran = true
				stop()
				err = <-ended
			case err = <-ended:
			}
			if ran != (v.want == "") || !ran && (err == nil || !strings.Contains(err.Error(), v.want)) || ran && err != nil {
				t.Errorf("it ran: %t, error %v; want error %q", ran, err, v.want)
			}
		})
	}
}

// said is a log that tells when a text is in it.
type said struct {
	text  string
	once  sync.Once
	heard chan struct{}
}

func (s *said) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(s.text)) {
		s.once.Do(func() { close(s.heard) })
	}
	return len(line), nil
}
