package localcluster

import (
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ContextName returns the name of the context, cluster and user of the named cluster in
// kubeconfigs.
func ContextName(name string) string { return "lockstep-" + name }

func (c *Cluster) restConfig(id identity) *rest.Config {
	return &rest.Config{
		Host:            loopback("https", c.ports[APIServer].port),
		BearerToken:     id.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.caPEM},
		// No client-side limit: the API server's priority and fairness applies.
		QPS: -1,
	}
}

func (c *Cluster) kubeconfig(id identity) *clientcmdapi.Config {
	name := ContextName(c.config.Name)
	kc := clientcmdapi.NewConfig()
	kc.Clusters[name] = &clientcmdapi.Cluster{Server: loopback("https", c.ports[APIServer].port),
		CertificateAuthorityData: c.caPEM}
	kc.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: id.token}
	kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kc.CurrentContext = name
	return kc
}

// writeKubeconfigs writes a kubeconfig for each identity, with mode 0600.
func (c *Cluster) writeKubeconfigs() error {
	for who, id := range c.identities {
		data, err := clientcmd.Write(*c.kubeconfig(id))
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.files.kubeconfig(who), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
