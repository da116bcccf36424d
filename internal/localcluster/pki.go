package localcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// certLifetime exceeds the life of any local cluster; certificates are not renewed.
const certLifetime = 10 * 365 * 24 * time.Hour

// authority is the cluster's own certificate authority. The certificates it signs are used on
// loopback only.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writePKI creates the authority, one serving certificate for all components, etcd's client
// certificate and the service-account key, as PEM files with mode 0600 in dir.
func writePKI(dir string) (*authority, error) {
	ca, err := newAuthority(dir)
	if err != nil {
		return nil, err
	}
	own := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(realnodes.ServiceIP)}
	for name, usage := range map[string]x509.ExtKeyUsage{"serving": x509.ExtKeyUsageServerAuth,
		"etcd-client": x509.ExtKeyUsageClientAuth} {
		if err := ca.issue(filepath.Join(dir, name), pkix.Name{CommonName: name}, own, usage); err != nil {
			return nil, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := writeKey(filepath.Join(dir, "service-account.key"), key); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	return ca, writePEM(filepath.Join(dir, "service-account.pub"), "PUBLIC KEY", public)
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := certificate(pkix.Name{CommonName: "lockstep local cluster"})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if err := writeKey(filepath.Join(dir, "ca.key"), key); err != nil {
		return nil, err
	}
	return &authority{cert, key}, writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", der)
}

// issue writes PATH.crt and PATH.key, valid for the addresses and the in-cluster names of the API
// server.
func (a *authority) issue(path string, subject pkix.Name, ips []net.IP, usages ...x509.ExtKeyUsage) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := certificate(subject)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = usages
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = ips
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if err := writeKey(path+".key", key); err != nil {
		return err
	}
	return writePEM(path+".crt", "CERTIFICATE", der)
}

func certificate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(certLifetime),
	}, nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// identity is the identity of a component at the API server: a user with a random token.
type identity struct {
	user   string
	groups []string
	token  string
}

// newIdentities returns the identities of a local cluster by name. The API server's bootstrap
// policy grants rights to the Kubernetes components by their user names. applyPolicies grants
// rights to the other users, and Config.Install to the manager.
func newIdentities() (map[string]identity, error) {
	ids := map[string]identity{
		"admin":              {user: "lockstep-admin", groups: []string{"system:masters"}},
		"controller-manager": {user: "system:kube-controller-manager"},
		"scheduler":          {user: "system:kube-scheduler"},
		"nodes":              {user: NodesUser, groups: []string{"system:nodes"}},
		"network":            {user: NetworkUser},
		"proxy":              {user: "system:kube-proxy"},
		"programs": {user: ProgramsUser,
			groups: []string{"system:serviceaccounts", "system:serviceaccounts:lockstep-programs"}},
		"manager": {user: ManagerUser,
			groups: []string{"system:serviceaccounts", "system:serviceaccounts:lockstep-system"}},
	}
	for name, id := range ids {
		var b [32]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, err
		}
		id.token = hex.EncodeToString(b[:])
		ids[name] = id
	}
	return ids, nil
}

// writeTokens writes the API server's token file: token,user,uid,"group,group".
func writeTokens(path string, ids map[string]identity) error {
	var out []byte
	for name, id := range ids {
		groups := ""
		for i, g := range id.groups {
			if i > 0 {
				groups += ","
			}
			groups += g
		}
		out = fmt.Appendf(out, "%s,%s,%s,%q\n", id.token, id.user, name, groups)
	}
	return os.WriteFile(path, out, 0o600)
}
