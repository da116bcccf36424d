package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.dev/lockstep/internal/http2client"
)

const (
	jsonType     = kruntime.ContentTypeJSON
	protobufType = kruntime.ContentTypeProtobuf
)

// Load finds a cluster by kubectl's rules: the file kubeconfigPath if it is set; else the files in
// $KUBECONFIG; else ~/.kube/config; else, inside a pod, the pod's service account. context selects
// a context of the kubeconfig; empty selects the current one. The result has no client-side rate
// limit, and its user agent names the program.
func Load(kubeconfigPath, context string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if kubeconfigPath != "" {
		if _, err := os.Stat(kubeconfigPath); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("kubeconfig %s does not exist", kubeconfigPath)
		}
		rules.ExplicitPath = kubeconfigPath
	}
	from := strings.Join(rules.GetLoadingPrecedence(), ", ")

	raw, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", from, err)
	}
	if clientcmdapi.IsConfigEmpty(raw) {
		if kubeconfigPath != "" {
			return nil, fmt.Errorf("kubeconfig %s is empty", kubeconfigPath)
		}
		if context != "" {
			return nil, fmt.Errorf("context %q not found: no kubeconfig in %s", context, from)
		}
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("no cluster configured: nothing in %s, and this is not a pod; "+
				"give --kubeconfig, set $KUBECONFIG, or start a local cluster with 'lockstep up'", from)
		}
		if err != nil {
			return nil, fmt.Errorf("using the pod's service account: %w", err)
		}
		return finish(cfg), nil
	}
	if context != "" {
		if _, ok := raw.Contexts[context]; !ok {
			return nil, fmt.Errorf("context %q not found in %s; it has: %s", context, from,
				strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", "))
		}
	} else if raw.CurrentContext == "" {
		return nil, fmt.Errorf("kubeconfig %s has no current-context; give --context", from)
	}

	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*raw, context, overrides, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", from, err)
	}
	return finish(cfg), nil
}

func finish(cfg *rest.Config) *rest.Config {
	cfg.QPS = -1
	cfg.Burst = -1
	cfg.UserAgent = fmt.Sprintf("%s (%s/%s)", filepath.Base(os.Args[0]), runtime.GOOS, runtime.GOARCH)
	return cfg
}

// Clientset returns a client for the built-in types. It uses protobuf, which costs the server half
// as much as JSON.
func Clientset(cfg *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(cfg)
	c.ContentType = protobufType
	c.AcceptContentTypes = protobufType + "," + jsonType
	return kubernetes.NewForConfig(c)
}

// ForGroupVersion returns a client for the types that s registers under gv. It uses protobuf for
// built-in types, and JSON for types of a CustomResourceDefinition, which have no protobuf
// encoding. conn is one of Connections, or nil to share client-go's connection for cfg.
func ForGroupVersion(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion, s *kruntime.Scheme) (rest.Interface,
	error) {
	if !s.IsVersionRegistered(gv) {
		return nil, fmt.Errorf("client for %s: the scheme has no types of it", gv)
	}
	return clientFor(cfg, conn, gv, ContentType(gv), codecsOf(s))
}

func clientFor(cfg *rest.Config, conn *http.Client, gv schema.GroupVersion, contentType string,
	s kruntime.NegotiatedSerializer) (rest.Interface, error) {
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = s
	c.ContentType, c.AcceptContentTypes = contentType, ""
	if c.ContentType == protobufType {
		c.AcceptContentTypes = protobufType + "," + jsonType
	}
	if conn == nil {
		var err error
		if conn, err = rest.HTTPClientFor(c); err != nil {
			return nil, fmt.Errorf("client for %s: %w", gv, err)
		}
	}
	client, err := rest.RESTClientForConfigAndClient(c, conn)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", gv, err)
	}
	return client, nil
}

// Metadata returns a client for the metadata of objects of gv: its answers are
// metav1.PartialObjectMetadata. Each request needs the header AcceptMetadata.
func Metadata(cfg *rest.Config, gv schema.GroupVersion) (rest.Interface, error) {
	return clientFor(cfg, nil, gv, protobufType, metainternalversionscheme.Codecs.WithoutConversion())
}

// AcceptMetadata returns the value of the Accept header of a request for metadata only. list is
// true for a list, and false for an object or a watch.
func AcceptMetadata(list bool) string {
	as := ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	if list {
		as = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	}
	return protobufType + as + "," + jsonType + as
}

// ContentType returns the cheapest encoding in which an API server accepts objects of gv.
func ContentType(gv schema.GroupVersion) string {
	if scheme.Scheme.IsVersionRegistered(gv) {
		return protobufType
	}
	return jsonType
}

// Connections returns n HTTP clients for cfg that share no TCP connection with each other or with
// other clients. The API server allows 100 to 250 concurrent requests on one HTTP/2 connection, and
// all of them, including watches, take turns on it: a program with parallel writes needs several.
func Connections(cfg *rest.Config, n int) ([]*http.Client, error) {
	conns, err := CheckedConnections(cfg, n)
	out := make([]*http.Client, len(conns))
	for i := range conns {
		out[i] = conns[i].Client
	}
	return out, err
}

// Connection is an HTTP client with TCP connections of its own.
type Connection struct {
	*http.Client
	// Terms checks lease terms before data is written to the sockets. If cfg has a custom transport
	// or dialer, no traffic passes through Terms.
	Terms *http2client.TermCheck
}

// CheckedConnections is Connections with a TermCheck for each client.
func CheckedConnections(cfg *rest.Config, n int) ([]Connection, error) {
	out := make([]Connection, n)
	for i := range out {
		c, gate := rest.CopyConfig(cfg), &http2client.TermCheck{}
		if c.Transport == nil && c.Dial == nil {
			dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
			// client-go shares connections among equal configs; a config with its own Dial function
			// is never equal to another.
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return gate.Wrap(conn), nil
			}
		}
		client, err := rest.HTTPClientFor(c)
		if err != nil {
			return nil, fmt.Errorf("connecting to %s: %w", cfg.Host, err)
		}
		out[i] = Connection{client, gate}
	}
	return out, nil
}
