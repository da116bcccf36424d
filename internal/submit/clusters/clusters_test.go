package clusters

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func newClient(t *testing.T) *Client {
	t.Helper()
	c, err := New(localtest.Shared(t).RESTConfig(), false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: oam.SystemNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return c
}

func credential(name, token string, labels map[string]string) *clusters.Credential {
	return &clusters.Credential{Name: name, Type: clusters.Token, Endpoint: "https://" + name + ".example:6443", Token: token, Labels: labels}
}

// labelsOf returns a cluster's labels, without those that describe its connection.
func labelsOf(t *testing.T, c *Client, name string) map[string]string {
	t.Helper()
	cred, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return cred.Labels
}

func TestJoinedClustersAreListedAndDetached(t *testing.T) {
	c := newClient(t)
	join := func(cred *clusters.Credential, wantReplaced bool) {
		t.Helper()
		if replaced, err := c.Join(t.Context(), cred); err != nil || replaced != wantReplaced {
			t.Fatalf("joining %s: replaced %t, %v", cred.Name, replaced, err)
		}
	}
	join(credential("west", "first", map[string]string{"region": "west", "tier": "gold"}), false)
	join(credential("east", "x", nil), false)

	// Joined again with other credentials: a label that is not given again stays.
	join(credential("west", "second", map[string]string{"tier": "silver"}), true)
	cred, err := c.Get(t.Context(), "west")
	if err != nil {
		t.Fatal(err)
	}
	if cred.Token != "second" {
		t.Errorf("the token is %q", cred.Token)
	}
	if diff := cmp.Diff(map[string]string{"region": "west", "tier": "silver"}, cred.Labels); diff != "" {
		t.Error(diff)
	}

	// A Secret that cannot be read does not hide the other clusters.
	broken := credential("broken", "x", nil).Secret()
	delete(broken.Data, "token")
	if _, err := c.core.CoreV1().Secrets(oam.SystemNamespace).Create(t.Context(), broken, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, problems, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range list {
		names = append(names, l.Name)
	}
	if diff := cmp.Diff([]string{"east", "west"}, names); diff != "" {
		t.Error(diff)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "broken") || !strings.Contains(problems[0].Error(), "token") {
		t.Errorf("problems: %v", problems)
	}

	gold := "gold"
	if err := c.Label(t.Context(), "west", map[string]*string{"region": nil, "tier": &gold}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"tier": "gold"}, labelsOf(t, c, "west")); diff != "" {
		t.Error(diff)
	}

	if err := c.Detach(t.Context(), "west"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "west"); err == nil || !strings.Contains(err.Error(), "no managed cluster west") {
		t.Errorf("after it was detached: %v", err)
	}
}

func TestOtherSecretsAreNobodysCluster(t *testing.T) {
	c := newClient(t)
	secrets := c.core.CoreV1().Secrets(oam.SystemNamespace)
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "passwords"}, Data: map[string][]byte{"db": []byte("x")}}
	if _, err := secrets.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, joinErr := c.Join(t.Context(), credential("passwords", "x", nil))
	_, getErr := c.Get(t.Context(), "passwords")
	for what, err := range map[string]error{"joining": joinErr, "reading": getErr,
		"labelling": c.Label(t.Context(), "passwords", map[string]*string{"a": nil}), "detaching": c.Detach(t.Context(), "passwords")} {
		if err == nil || !strings.Contains(err.Error(), "passwords") {
			t.Errorf("%s: %v", what, err)
		}
	}
	there, err := secrets.Get(t.Context(), "passwords", metav1.GetOptions{})
	if err != nil || string(there.Data["db"]) != "x" || len(there.Labels) > 0 {
		t.Errorf("the secret is %v, %v", there, err)
	}
}

func TestADryRunLeavesClustersAsTheyAre(t *testing.T) {
	c := newClient(t)
	if _, err := c.Join(t.Context(), credential("dry", "first", map[string]string{"a": "b"})); err != nil {
		t.Fatal(err)
	}
	try := *c
	try.dryRun = true
	if _, err := try.Join(t.Context(), credential("never", "x", nil)); err != nil {
		t.Error(err)
	}
	if replaced, err := try.Join(t.Context(), credential("dry", "second", nil)); err != nil || !replaced {
		t.Errorf("replaced %t, %v", replaced, err)
	}
	if err := try.Label(t.Context(), "dry", map[string]*string{"a": nil}); err != nil {
		t.Error(err)
	}
	if err := try.Detach(t.Context(), "dry"); err != nil {
		t.Error(err)
	}
	cred, err := c.Get(t.Context(), "dry")
	if err != nil || cred.Token != "first" || cred.Labels["a"] != "b" {
		t.Errorf("the cluster is %v, %v", cred, err)
	}
	if _, err := c.Get(t.Context(), "never"); err == nil {
		t.Error("a dry run joined a cluster")
	}
}

func TestProbeSaysWhetherAClusterIsThere(t *testing.T) {
	c := newClient(t)
	way := localtest.Shared(t).RESTConfig()
	cred, err := clusters.FromREST("itself", way)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(t.Context(), cred, clusters.Gateway{}); err != nil {
		t.Errorf("the cluster that it runs against: %v", err)
	}
	wrong := rest.CopyConfig(way)
	wrong.BearerToken, wrong.CertData, wrong.KeyData = "wrong", nil, nil
	if cred, err = clusters.FromREST("wrong", wrong); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(t.Context(), cred, clusters.Gateway{}); err == nil {
		t.Error("a wrong token is taken for a right one")
	}
}
