package arch

import (
	"go/ast"
	"strconv"
	"strings"
	"testing"
)

// watchers maps the packages that may make informers and start watches with client-go to the
// reason. The longest prefix counts.
var watchers = map[string]string{
	"internal/informer":               "is the one place where informers are made",
	"internal/application/objects":    "its store takes answers to writes before the watch shows them, in the order of versions, and no late answer about a deleted object: on an Informer, which has a store of its own, all of that would remain and the store's objects would be kept twice",
	"internal/scheduler/upstream":     "the kube-scheduler's plugins take informers of a factory, which has no setting for the backoff",
	"internal/localcluster/simnode":   "is a part of a local cluster, and writes back the pods of its cache, which must be whole",
	"internal/localcluster/realnodes": "is a part of a local cluster, whose server is on the same machine",
	"internal/submit":                 "is a user's command, which ends when it has seen what it waits for",
	"internal/lab":                    "is a client that drives load and measures; what it misses is in the audit log",
}

// patient maps the packages whose informers may have the option Patient, and so wait up to a minute
// after failures, to the reason.
var patient = map[string]string{
	"internal/cputopology/agent": "there is one on each node: thousands that ask every two seconds would hold down a server that comes back",
}

// informerLibraries are the packages that make informers or start watches.
var informerLibraries = []string{
	"k8s.io/client-go/tools/cache", "k8s.io/client-go/tools/watch", "k8s.io/client-go/informers", "k8s.io/client-go/dynamic/dynamicinformer",
	"k8s.io/client-go/metadata/metadatainformer", "k8s.io/apiextensions-apiserver/pkg/client/informers",
}

// TestOnlyInformerWatches checks that only the packages of watchers start watches. It detects
// watches by their traces in the source: imports of libraries, and calls of a client's method Watch
// with a context and, for typed clients, options.
func TestOnlyInformerWatches(t *testing.T) {
	const why = "caches of the API server are made by internal/informer, which decodes object by object, sets malformed objects apart, " +
		"recovers from panics of handlers, and opens a failed watch again within seconds"
	used := map[string]bool{}
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal", "cmd") {
			continue
		}
		allowed := longest(f.pkg, watchers)
		found := func(at, what string) {
			if used[allowed] = true; allowed == "" {
				t.Errorf("%s %s: %s; if it must, say in watchers why", at, what, why)
			}
		}
		for _, spec := range f.Imports {
			if imported, _ := strconv.Unquote(spec.Path.Value); under(imported, informerLibraries...) {
				found(f.at(spec), "imports "+imported)
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Watch" && isContext(n.Args) {
					found(f.at(n), "starts a watch")
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Patient" && f.pkg != "internal/informer" && longest(f.pkg, patient) == "" {
					t.Errorf("%s has a patient informer, which may be a minute behind after a few cut connections: say in patient why that does not matter", f.at(n))
				}
			}
			return true
		})
	}
	for p := range watchers {
		if !used[p] {
			t.Errorf("watchers has %s, which starts no watches", p)
		}
	}
}

// isContext reports whether the arguments of a call are those of a client's Watch: a variable ctx,
// and at most one more.
func isContext(args []ast.Expr) bool {
	if len(args) == 0 || len(args) > 2 {
		return false
	}
	first, ok := args[0].(*ast.Ident)
	return ok && first.Name == "ctx"
}

// longest returns the longest of the prefixes that pkg is under, or "".
func longest(pkg string, prefixes map[string]string) string {
	found := ""
	for p := range prefixes {
		if under(pkg, p) && len(p) > len(found) {
			found = p
		}
	}
	return found
}

// TestWatchesComeBackSoon checks that the reflectors of the manager's caches have the backoff of
// kubeclient.WatchBackoff.
func TestWatchesComeBackSoon(t *testing.T) {
	const why = "after a few cut connections client-go's own backoff has whoever decides by a watch wait up to a minute; " +
		"make the reflector with Backoff: kubeclient.WatchBackoff()"
	reflectors := 0
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal/informer", "internal/application/objects") {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "ReflectorOptions" {
					reflectors++
					if !hasWatchBackoff(n) {
						t.Errorf("%s makes a reflector with client-go's own backoff: %s", f.at(n), why)
					}
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				makes := strings.HasPrefix(n.Sel.Name, "New") && (strings.Contains(n.Sel.Name, "Informer") || strings.Contains(n.Sel.Name, "Reflector"))
				if ok && x.Name == "cache" && makes && n.Sel.Name != "NewReflectorWithOptions" {
					t.Errorf("%s calls cache.%s: %s", f.at(n), n.Sel.Name, why)
				}
			}
			return true
		})
	}
	if reflectors < 2 {
		t.Errorf("only %d reflectors were found: those of Informer and of an application's objects are there", reflectors)
	}
}

// TestOnlyControlloopQueuesKeys checks that there is one work queue, with one backoff.
func TestOnlyControlloopQueuesKeys(t *testing.T) {
	const library = "k8s.io/client-go/util/workqueue"
	queues := map[string]string{
		"internal/controlloop": "is the one loop",
	}
	used := map[string]bool{}
	for _, f := range load(t) {
		for _, imported := range f.imports() {
			if imported != library {
				continue
			}
			allowed := longest(f.pkg, queues)
			if used[allowed] = true; allowed == "" {
				t.Errorf("%s imports %s: keys wait in a controlloop.Loop, which retries with one backoff and recovers from panics in one way", f.name, library)
			}
		}
	}
	for p, reason := range queues {
		if !used[p] {
			t.Errorf("%s, which %s, has no work queue any longer: take it out of queues", p, reason)
		}
	}
}

// hasWatchBackoff reports whether options have Backoff: kubeclient.WatchBackoff().
func hasWatchBackoff(options *ast.CompositeLit) bool {
	for _, e := range options.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := pair.Key.(*ast.Ident)
		value, _ := pair.Value.(*ast.CallExpr)
		if key == nil || key.Name != "Backoff" || value == nil {
			continue
		}
		if made, _ := value.Fun.(*ast.SelectorExpr); made != nil && made.Sel.Name == "WatchBackoff" {
			return true
		}
	}
	return false
}
