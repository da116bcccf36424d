package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "lockstep.dev/lockstep/"

// layers are the layers of the architecture, lowest first. A package may import packages of lower
// layers and, within its own layer, what together allows. The longest matching prefix determines a
// package's layer.
var layers = [][]string{
	{"api", "internal/clip", "internal/spelling", "internal/unsupported", "internal/panics", "internal/failpoint", "internal/fence", "internal/race", "internal/rawjson", "internal/unpack", "internal/http2client"},
	{"internal/malformed", "internal/podset/plan", "internal/cron/schedule"},
	{"config", "internal/admission", "internal/gcpace", "internal/kubeclient", "internal/procs", "internal/sandbox", "internal/scheduler/place", "internal/scheduler/share", "internal/scheduler/evict", "internal/scheduler/config", "internal/scheduler/network", "internal/scheduler/zones", "internal/scheduler/usage", "internal/scheduler/types",
		"internal/cputopology", "internal/workflow/engine", "internal/workflow/template", "internal/workflow/display", "internal/workflow/nodeselect",
		"internal/workflow/locks", "internal/workflow/rerun", "internal/workflow/compress", "internal/lint", "internal/workflow/execapi", "internal/workflow/pods", "internal/workflow/settings",
		"internal/application/chart", "internal/application/addon", "internal/application/render", "internal/application/plan", "internal/application/flow", "internal/application/dependency", "internal/application/fieldpath", "internal/batch/lifecycle", "internal/batch/pods"},
	{"internal/informer"},
	{"internal/apiwriter", "internal/cluster", "internal/egress", "internal/install", "internal/controlloop", "internal/serve", "internal/shard", "internal/nodeusage"},
	{"internal/scheduler", "internal/application/clusters", "internal/malformed/report", "internal/cron"},
	{"internal/podset"},
	{"internal/batch", "internal/podgroup", "internal/hypernode", "internal/workflow", "internal/application", "internal/cputopology/agent", "internal/cputopology/nodecontroller", "internal/cputopology/podcontroller", "internal/localcluster", "internal/submit"},
	{"internal/manager", "internal/lab", "internal/web", "internal/migrate"},
	{"internal/cli"},
	{"cmd", "test", "hack", "internal/arch"},
}

// together lists groups of packages in one layer that may import each other: a package and the
// packages inside it.
var together = []string{
	"api", "internal/unpack", "internal/scheduler", "internal/cputopology", "internal/batch", "internal/workflow", "internal/application",
	"internal/localcluster", "internal/submit", "internal/lab", "internal/cli", "test", "cmd",
}

// pure packages only make decisions: they use no client, clock, goroutine, log or file.
var pure = []string{
	"internal/scheduler/place", "internal/scheduler/share", "internal/scheduler/evict", "internal/scheduler/config", "internal/scheduler/network", "internal/scheduler/zones", "internal/scheduler/usage", "internal/cputopology", "internal/cputopology/cpuset",
	"internal/cputopology/request", "internal/cputopology/allocate", "internal/cputopology/reservation", "internal/cputopology/repack", "internal/cputopology/sharing", "internal/cputopology/agent/desired",
	"internal/workflow/engine", "internal/workflow/template", "internal/workflow/display", "internal/workflow/nodeselect", "internal/cron/schedule",
	"internal/workflow/locks", "internal/workflow/rerun", "internal/workflow/compress", "internal/lint", "internal/workflow/execapi", "internal/workflow/pods", "internal/workflow/settings",
	"internal/application/chart", "internal/application/addon", "internal/application/render", "internal/application/plan", "internal/application/flow", "internal/application/dependency", "internal/application/fieldpath", "internal/batch/lifecycle", "internal/batch/pods", "internal/podset/plan",
	"internal/lab/analyse", "internal/lab/scenario", "internal/lab/systemfile", "internal/lab/stats", "internal/lab/capacity", "internal/lab/threshold", "internal/lab/metrics", "internal/lab/bottleneck", "internal/lab/trace", "internal/lab/page", "internal/clip", "internal/spelling", "internal/unsupported", "internal/malformed", "internal/rawjson", "internal/unpack", "internal/unpack/yamldoc",
}

// pureMayImport are the libraries that pure packages may use besides the standard library: API
// types, and functions on them.
var pureMayImport = []string{
	module + "api/", "k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/", "k8s.io/utils/",
	"cuelang.org/go/", "github.com/expr-lang/expr", "github.com/casbin/govaluate", "github.com/Masterminds/sprig/v3", "github.com/theory/jsonpath", "github.com/itchyny/timefmt-go", "gopkg.in/evanphx/json-patch.v4", "github.com/robfig/cron/v3", "github.com/santhosh-tekuri/jsonschema/v6", "helm.sh/helm/v4/pkg/chart", "helm.sh/helm/v4/pkg/engine", "sigs.k8s.io/yaml", "go.yaml.in/yaml/v3",
}

// pureExceptions maps further imports that single pure packages may have to the reason.
var pureExceptions = map[string]string{
	"internal/lab/metrics github.com/prometheus/common/expfmt":   "parses the text format of metrics",
	"internal/lab/metrics github.com/prometheus/common/model":    "names the rules for names of metrics",
	"internal/lab/metrics github.com/prometheus/client_model/go": "has the types of parsed metrics",
	"internal/scheduler/place k8s.io/klog/v2":                    "the API types' own ToleratesTaint takes a logger, and gets a silent one",
	"internal/workflow/template math/rand/v2":                    "the generator's seed is an argument, so that the same expression gives the same values again",
}

// impure are packages of the standard library that have side effects or read the environment.
var impure = []string{"os", "net", "log", "syscall", "database", "plugin", "math/rand", "math/rand/v2", "crypto/rand", "runtime/pprof", "os/exec"}

// writers maps the packages that may send writes to an API server to the reason.
var writers = map[string]string{
	"internal/apiwriter":    "is the one write path",
	"internal/localcluster": "sets up a cluster that has no manager yet",
	"internal/install":      "sets up a cluster that has no manager yet",
	"internal/lab":          "is the client whose load is measured",
	"internal/submit":       "is the user's own hand, like kubectl",
	"cmd/lockstep-kube":     "is the server's side",
	"test":                  "is a test",
}

// sourceFile is one parsed file of the module.
type sourceFile struct {
	name string // path relative to the module's root
	pkg  string // directory of the file, relative to the module's root
	test bool
	*ast.File
}

func (f sourceFile) imports() []string {
	paths := make([]string, len(f.Imports))
	for i, spec := range f.Imports {
		paths[i], _ = strconv.Unquote(spec.Path.Value)
	}
	return paths
}

var fset = token.NewFileSet()

func (f sourceFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.name, fset.Position(n.Pos()).Line)
}

func load(t *testing.T) []sourceFile {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []sourceFile
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "node_modules") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); name != root && err == nil {
				return filepath.SkipDir // another module
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		pkg := path.Dir(rel)
		files = append(files, sourceFile{
			name: rel, pkg: pkg, File: parsed,
			// Test harnesses, which only tests import, count as tests.
			test: strings.HasSuffix(base, "_test.go") || strings.HasSuffix(pkg, "test"),
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files found under %s", len(files), root)
	}
	return files
}

// under reports whether pkg is one of prefixes or inside one.
func under(pkg string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		return pkg == p || strings.HasPrefix(pkg, p+"/")
	})
}

func layerOf(pkg string) int {
	layer, longest := -1, -1
	for i, prefixes := range layers {
		for _, p := range prefixes {
			if under(pkg, p) && len(p) > longest {
				layer, longest = i, len(p)
			}
		}
	}
	return layer
}

func TestImportsPointDown(t *testing.T) {
	for _, f := range load(t) {
		if f.test {
			continue
		}
		from := layerOf(f.pkg)
		if from < 0 {
			t.Errorf("%s: package %s has no place in layers: say on which floor it lives", f.name, f.pkg)
			continue
		}
		for _, imported := range f.imports() {
			pkg, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			to := layerOf(pkg)
			near := slices.ContainsFunc(together, func(p string) bool { return under(f.pkg, p) && under(pkg, p) })
			if to > from || to == from && !near {
				t.Errorf("%s imports %s, which is on floor %d, not below its own, %d: dependencies point down, "+
					"so that each package can be understood and tested without those that use it", f.name, pkg, to, from)
			}
		}
	}
}

func TestOnlyTwoPackagesImportKubernetes(t *testing.T) {
	for _, f := range load(t) {
		if under(f.pkg, "cmd/lockstep-kube", "internal/scheduler/upstream") {
			continue
		}
		for _, imported := range f.imports() {
			if under(imported, "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3") {
				t.Errorf("%s imports %s: it costs minutes to compile and a hundred megabytes to link; "+
					"only cmd/lockstep-kube and internal/scheduler/upstream do", f.name, imported)
			}
		}
	}
}

func TestNobodyImportsTheSystemsWeReplace(t *testing.T) {
	for _, f := range load(t) {
		for _, imported := range f.imports() {
			if under(imported, "volcano.sh/volcano", "volcano.sh/apis", "github.com/argoproj", "github.com/oam-dev", "github.com/kubevela") {
				t.Errorf("%s imports %s: our API types and rules are our own", f.name, imported)
			}
		}
	}
}

func TestPurePackagesOnlyDecide(t *testing.T) {
	for _, f := range load(t) {
		if f.test || !slices.Contains(pure, f.pkg) {
			continue
		}
		const why = "a pure package is a function of its arguments, so that its every decision can be replayed in a test"
		for _, imported := range f.imports() {
			if pureExceptions[f.pkg+" "+imported] != "" {
				continue
			}
			switch pkg, ours := strings.CutPrefix(imported, module); {
			case ours && slices.Contains(pure, pkg), under(strings.TrimSuffix(imported, "/"), trimmed(pureMayImport)...):
			case ours, strings.Contains(strings.Split(imported, "/")[0], "."):
				t.Errorf("%s imports %s: %s; it may import API types and other pure packages", f.name, imported, why)
			case under(imported, impure...):
				t.Errorf("%s imports %s, which acts or looks outside: %s", f.name, imported, why)
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine: %s", f.at(n), why)
			case *ast.SelectorExpr:
				clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					t.Errorf("%s uses time.%s: %s; take the time as an argument", f.at(n), n.Sel.Name, why)
				}
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "metav1" && n.Sel.Name == "Now" {
					t.Errorf("%s uses metav1.Now: %s; take the time as an argument", f.at(n), why)
				}
			}
			return true
		})
	}
}

func trimmed(prefixes []string) []string {
	out := make([]string, len(prefixes))
	for i, p := range prefixes {
		out[i] = strings.TrimSuffix(p, "/")
	}
	return out
}

// TestOneWriter checks that only the packages of writers send writes. It detects writes by their
// traces in the source: the options that every write of a client takes, the verbs of REST clients,
// and the libraries that write by themselves.
func TestOneWriter(t *testing.T) {
	const why = "every write goes through internal/apiwriter, which bounds, orders, retries and counts them"
	options := []string{"CreateOptions", "UpdateOptions", "PatchOptions", "DeleteOptions", "ApplyOptions"}
	methods := []string{"UpdateStatus", "ApplyStatus", "DeleteCollection", "UpdateScale", "EvictV1", "EvictV1beta1", "UpdateEphemeralContainers"}
	libraries := map[string]string{
		"k8s.io/client-go/tools/record":                      "events go through apiwriter's Event",
		"k8s.io/client-go/tools/events":                      "events go through apiwriter's Event",
		"sigs.k8s.io/controller-runtime/pkg/client":          "its client writes",
		"k8s.io/client-go/tools/leaderelection":              "a leader's lease is renewed by internal/manager alone, which must not wait behind other writes",
		"k8s.io/client-go/tools/leaderelection/resourcelock": "a leader's lease is renewed by internal/manager alone, which must not wait behind other writes",
		module + "internal/http2client":                      "its requests may be writes",
	}
	allowed := func(pkg, imported string) bool {
		switch {
		case strings.Contains(imported, "leaderelection"):
			return under(pkg, "internal/manager")
		case imported == module+"internal/http2client":
			return under(pkg, "internal/kubeclient") // kubeclient creates its clients
		}
		return false
	}
	for _, f := range load(t) {
		if f.test || slices.ContainsFunc(keys(writers), func(p string) bool { return under(f.pkg, p) }) {
			continue
		}
		metaName, isMetaName := "", func(string) bool { return false }
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if imported == "k8s.io/apimachinery/pkg/apis/meta/v1" {
				metaName = "v1"
				if spec.Name != nil {
					metaName = spec.Name.Name
				}
				isMetaName = func(s string) bool { return s == metaName }
			}
			if reason, found := libraries[imported]; found && !allowed(f.pkg, imported) {
				t.Errorf("%s imports %s: %s; %s", f.at(spec), imported, reason, why)
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && isMetaName(x.Name) && slices.Contains(options, n.Sel.Name) {
					t.Errorf("%s uses %s.%s, as a write with a client does: %s", f.at(n), x.Name, n.Sel.Name, why)
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				rest := len(n.Args) == 0 && (sel.Sel.Name == "Post" || sel.Sel.Name == "Put")
				if rest || slices.Contains(methods, sel.Sel.Name) {
					t.Errorf("%s calls %s: %s", f.at(n), sel.Sel.Name, why)
				}
			}
			return true
		})
	}
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}
