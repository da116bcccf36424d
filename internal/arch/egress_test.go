package arch

import (
	"go/ast"
	"slices"
	"strconv"
	"testing"
)

// dialers maps the packages that may open connections themselves to the reason why: no user of the
// cluster chooses the address, or the connection does not come from the manager.
var dialers = map[string]string{
	"internal/egress":                      "is the one guard of what the manager requests for users",
	"internal/http2client":                 "connects to the API server",
	"internal/kubeclient":                  "connects to the API server",
	"internal/submit/applications":         "runs on the user's own machine, with a connection to the API server",
	"internal/nodeusage":                   "asks the Prometheus server that the administrator configures, or the API server",
	"internal/localcluster":                "runs the components of a local cluster, and asks whether they are healthy",
	"internal/lab":                         "drives load and reads the profiles of processes that it started",
	"internal/cli":                         "runs on the user's own machine: charts that are rendered there are fetched by who asks for it",
	"internal/application/addons":          "runs on the user's own machine: addons are fetched by who enables them",
	"internal/workflow/entrypoint":         "gives the guard's own client to the library that asks registries",
	"internal/workflow/request":            "runs in the pod of the step, where the rules of the namespace's network apply",
	"internal/workflow/artifacts":          "runs in the pod of the step, where the rules of the namespace's network apply",
	"internal/workflow/plugin":             "runs in the pod of the step, and connects to other containers of the pod",
	"internal/workflow/executor/incluster": "runs in the pod of the step, and connects to the API server",
}

// connecting lists, by import path, the identifiers that open a connection or create a client that
// opens one.
var connecting = map[string][]string{
	"net": {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "Resolver", "DefaultResolver",
		"LookupHost", "LookupIP", "LookupAddr", "LookupCNAME", "LookupTXT", "LookupMX", "LookupNS", "LookupSRV"},
	"net/http":                     {"Client", "Transport", "DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm", "ProxyFromEnvironment"},
	"net/smtp":                     {"Dial", "SendMail"},
	"crypto/tls":                   {"Dial", "DialWithDialer", "Dialer"},
	"golang.org/x/crypto/ssh":      {"Dial"},
	"github.com/go-git/go-git/v5":  {"Clone", "PlainClone", "PlainCloneContext", "CloneContext", "NewRemote"},
	"github.com/minio/minio-go/v7": {"New"},
	"google.golang.org/grpc":       {"Dial", "DialContext", "NewClient"},
}

// connectingLibraries open connections themselves when given an address.
var connectingLibraries = []string{
	"helm.sh/helm/v4/pkg/registry", "helm.sh/helm/v4/pkg/getter", "helm.sh/helm/v4/pkg/downloader", "helm.sh/helm/v4/pkg/repo",
	"helm.sh/helm/v4/pkg/pusher", "oras.land/oras-go", "github.com/google/go-containerregistry",
	"github.com/Azure/azure-sdk-for-go/sdk", "github.com/aliyun/alibabacloud-oss-go-sdk-v2", "github.com/aliyun/credentials-go",
	"github.com/colinmarc/hdfs/v2", "github.com/jcmturner/gokrb5/v8", "golang.org/x/oauth2/google",
}

// TestOnlyTheGuardConnectsForUsers checks that only the packages of dialers open connections. It
// detects connections by their traces in the source.
func TestOnlyTheGuardConnectsForUsers(t *testing.T) {
	const why = "what the manager requests for users goes through internal/egress, which judges the address that is dialled; " +
		"if nobody but an administrator chooses the address, or it is not the manager that connects, say so in dialers"
	used := map[string]bool{}
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal", "cmd") {
			continue
		}
		allowed := ""
		for p := range dialers {
			if under(f.pkg, p) && len(p) > len(allowed) {
				allowed = p
			}
		}
		names := map[string]string{} // local names of this file's imports
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if slices.ContainsFunc(connectingLibraries, func(l string) bool { return under(imported, l) }) {
				if used[allowed] = true; allowed == "" {
					t.Errorf("%s imports %s: %s", f.at(spec), imported, why)
				}
			}
			if connecting[imported] == nil {
				continue
			}
			name := map[string]string{"net": "net", "net/http": "http", "net/smtp": "smtp", "crypto/tls": "tls", "golang.org/x/crypto/ssh": "ssh",
				"github.com/go-git/go-git/v5": "git", "github.com/minio/minio-go/v7": "minio", "google.golang.org/grpc": "grpc"}[imported]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = imported
		}
		types := map[ast.Node]bool{} // a parameter or field of such a type opens no connection
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StarExpr:
				types[n.X] = true
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || !slices.Contains(connecting[names[x.Name]], n.Sel.Name) || types[n] {
					return true
				}
				if used[allowed] = true; allowed == "" {
					t.Errorf("%s uses %s.%s: %s", f.at(n), x.Name, n.Sel.Name, why)
				}
			}
			return true
		})
	}
	for p, reason := range dialers {
		if !used[p] {
			t.Errorf("%s, which %s, connects to nothing any longer: take it out of dialers", p, reason)
		}
	}
}
