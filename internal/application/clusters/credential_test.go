package clusters

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestACredentialSurvivesItsSecret(t *testing.T) {
	for name, c := range map[string]*Credential{
		"token":       {Name: "a", Type: Token, Endpoint: "https://10.0.0.1:6443", CA: []byte("ca"), Token: "t", Labels: map[string]string{"region": "hz"}},
		"certificate": {Name: "b.c", Alias: "Berlin", Type: Certificate, Endpoint: "https://b", Cert: []byte("c"), Key: []byte("k"), ProxyURL: "http://p:1", Labels: map[string]string{}},
		"gateway":     {Name: "g", Type: Token, Gateway: true, Labels: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromSecret(c.Secret())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c, got, cmp.Transformer("nil", func(b []byte) string { return string(b) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBadCredentials(t *testing.T) {
	good := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "vela-system", Labels: map[string]string{CredentialTypeLabel: string(Token)}},
			Data:       map[string][]byte{"endpoint": []byte("https://h"), "token": []byte("t")},
		}
	}
	if _, err := FromSecret(good()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func(*corev1.Secret)
		want  string
	}{
		"no endpoint": {func(s *corev1.Secret) { delete(s.Data, "endpoint") }, `endpoint "" is not an https address`},
		"not https":   {func(s *corev1.Secret) { s.Data["endpoint"] = []byte("http://h") }, "not an https address"},
		"no token":    {func(s *corev1.Secret) { delete(s.Data, "token") }, "there is no token"},
		"a certificate, no key": {func(s *corev1.Secret) {
			s.Labels[CredentialTypeLabel] = string(Certificate)
			s.Data["tls.crt"] = []byte("c")
		}, "tls.key is missing"},
		"a type we do not know":    {func(s *corev1.Secret) { s.Labels[CredentialTypeLabel] = "Dynamic" }, `is "Dynamic"; want`},
		"the local cluster's name": {func(s *corev1.Secret) { s.Name = "local" }, "the cluster that the manager runs against"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.spoil(s)
			if _, err := FromSecret(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

func TestAClusterBehindAGatewayIsReachedWithTheHubsCredential(t *testing.T) {
	c := &Credential{Name: "far", Gateway: true}
	got, err := c.REST(&rest.Config{Host: "https://hub", BearerToken: "hub's"}, Gateway{URL: "https://gw:9443/"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "https://gw:9443/apis/cluster.core.oam.dev/v1alpha1/clustergateways/far/proxy"; got.Host != want || got.BearerToken != "hub's" {
		t.Errorf("%s", got.Host)
	}
}
