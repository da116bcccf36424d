package clusters

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Labels, annotations and keys of a Secret with a cluster's credential.
const (
	prefix              = "cluster.core.oam.dev/"
	CredentialTypeLabel = prefix + "cluster-credential-type"
	EndpointTypeLabel   = prefix + "cluster-endpoint-type"
	AliasAnnotation     = prefix + "cluster-alias"
	// ControlPlaneLabel is set for every cluster: "true" for the local cluster, "false" for managed
	// ones.
	ControlPlaneLabel = prefix + "control-plane"

	// EndpointConst means that the cluster is reached by its address. EndpointProxy means that it
	// is reached through a cluster gateway.
	EndpointConst = "Const"
	EndpointProxy = "ClusterProxy"

	keyEndpoint = "endpoint"
	keyCA       = "ca.crt"
	keyToken    = "token"
	keyCert     = "tls.crt"
	keyKey      = "tls.key"
	keyProxy    = "proxy-url"
)

// Type is the kind of a credential.
type Type string

// Values of Type.
const (
	Token       Type = "ServiceAccountToken"
	Certificate Type = "X509Certificate"
)

// Credential says how to reach a managed cluster.
type Credential struct {
	Name, Alias string
	Type        Type
	// Gateway says that the cluster is reached through a cluster gateway. Endpoint is not used
	// then.
	Gateway  bool
	Endpoint string
	// CA is in PEM form. If empty, the server's certificate is not checked.
	CA        []byte
	Token     string
	Cert, Key []byte
	ProxyURL  string
	// Labels are the labels for placement.
	Labels map[string]string
}

// FromSecret reads a credential from a Secret.
func FromSecret(s *corev1.Secret) (*Credential, error) {
	c := &Credential{
		Name: s.Name, Alias: s.Annotations[AliasAnnotation], Type: Type(s.Labels[CredentialTypeLabel]),
		Gateway:  s.Labels[EndpointTypeLabel] == EndpointProxy,
		Endpoint: string(s.Data[keyEndpoint]), CA: s.Data[keyCA], Token: strings.TrimSpace(string(s.Data[keyToken])),
		Cert: s.Data[keyCert], Key: s.Data[keyKey], ProxyURL: string(s.Data[keyProxy]), Labels: map[string]string{},
	}
	for k, v := range s.Labels {
		if !strings.HasPrefix(k, prefix) {
			c.Labels[k] = v
		}
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return c, nil
}

func (c *Credential) check() error {
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", c.Name, problems[0])
	}
	if c.Name == oam.LocalCluster {
		return fmt.Errorf("%q is the name of the cluster that the manager runs against", c.Name)
	}
	if c.Gateway {
		return nil // the gateway has the credential
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%s %q is not an https address", keyEndpoint, c.Endpoint)
	}
	switch c.Type {
	case Token:
		if c.Token == "" {
			return fmt.Errorf("the type is %s, and there is no %s", c.Type, keyToken)
		}
	case Certificate:
		if len(c.Cert) == 0 || len(c.Key) == 0 {
			return fmt.Errorf("the type is %s, and %s or %s is missing", c.Type, keyCert, keyKey)
		}
	default:
		return fmt.Errorf("label %s is %q; want %s or %s", CredentialTypeLabel, c.Type, Token, Certificate)
	}
	return nil
}

// FromREST makes a credential from a kubeconfig's client configuration.
func FromREST(name string, cfg *rest.Config) (*Credential, error) {
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, err
	}
	c := &Credential{
		Name: name, Type: Token, Endpoint: cfg.Host, CA: cfg.CAData, Token: cfg.BearerToken, Cert: cfg.CertData, Key: cfg.KeyData,
		Labels: map[string]string{},
	}
	switch {
	case cfg.ExecProvider != nil || cfg.AuthProvider != nil:
		return nil, errors.New("the kubeconfig asks a program for its credential, which a manager cannot; use a service account's token or a certificate")
	case cfg.BearerToken != "":
		c.Cert, c.Key = nil, nil
	case len(cfg.CertData) > 0:
		c.Type = Certificate
	}
	if cfg.Insecure {
		c.CA = nil
	}
	return c, c.check()
}

// Secret returns the Secret that stores the credential.
func (c *Credential) Secret() *corev1.Secret {
	s := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: oam.SystemNamespace, Name: c.Name, Labels: maps.Clone(c.Labels)},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{keyEndpoint: []byte(c.Endpoint)},
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels[CredentialTypeLabel], s.Labels[EndpointTypeLabel] = string(c.Type), EndpointConst
	if c.Gateway {
		s.Labels[EndpointTypeLabel] = EndpointProxy
	}
	if c.Alias != "" {
		s.Annotations = map[string]string{AliasAnnotation: c.Alias}
	}
	for key, value := range map[string][]byte{keyCA: c.CA, keyToken: []byte(c.Token), keyCert: c.Cert, keyKey: c.Key, keyProxy: []byte(c.ProxyURL)} {
		if len(value) > 0 {
			s.Data[key] = value
		}
	}
	return s
}

// Gateway locates the cluster gateway. The zero value is the gateway in the manager's own cluster.
type Gateway struct {
	// URL is the address of the gateway, or of the API server that the gateway is a part of. If
	// empty, it is the manager's own API server.
	URL string
	// CAFile has the CA for the gateway's certificate. If empty, it is the CA of the manager's own
	// cluster.
	CAFile string
}

// REST returns the client configuration for the cluster. hub is the configuration of the manager's
// own cluster, whose credential is sent to a gateway.
func (c *Credential) REST(hub *rest.Config, gateway Gateway) (*rest.Config, error) {
	out := &rest.Config{QPS: -1, Burst: -1, UserAgent: hub.UserAgent}
	if c.Gateway {
		out = rest.CopyConfig(hub)
		if gateway.URL != "" {
			out.Host = gateway.URL
		}
		if gateway.CAFile != "" {
			out.CAFile, out.CAData = gateway.CAFile, nil
		}
		out.Host = strings.TrimSuffix(out.Host, "/") + "/apis/cluster.core.oam.dev/v1alpha1/clustergateways/" + c.Name + "/proxy"
		return out, nil
	}
	out.Host = c.Endpoint
	out.CAData, out.Insecure = c.CA, len(c.CA) == 0
	if c.Type == Token {
		out.BearerToken = c.Token
	} else {
		out.CertData, out.KeyData = c.Cert, c.Key
	}
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %s: %w", c.Name, keyProxy, err)
		}
		out.Proxy = http.ProxyURL(proxy)
	}
	return out, nil
}

// sameWay reports whether two credentials reach the cluster in the same way.
func sameWay(a, b *Credential) bool {
	return a.Type == b.Type && a.Gateway == b.Gateway && a.Endpoint == b.Endpoint && a.Token == b.Token && a.ProxyURL == b.ProxyURL &&
		slices.Equal(a.CA, b.CA) && slices.Equal(a.Cert, b.Cert) && slices.Equal(a.Key, b.Key)
}
