package arch

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ownBackoff are the packages whose watches may use client-go's own backoff after failures, which
// is up to a minute, with the reason.
var ownBackoff = map[string]string{
	"internal/scheduler/upstream":     "the kube-scheduler's plugins take informers of a factory, which has no setting for it",
	"internal/cputopology/agent":      "there is one on each node: thousands that ask every two seconds would hold down a server that comes back",
	"internal/localcluster/simnode":   "is a part of a local cluster, whose server is on the same machine",
	"internal/localcluster/realnodes": "is a part of a local cluster, whose server is on the same machine",
	"internal/submit":                 "is a user's command, which ends when it has seen what it waits for",
	"internal/lab":                    "is a client that drives load and measures; what it misses is in the audit log",
}

// watching lists, by import path, the functions that start watches with a backoff that the caller
// cannot choose.
var watching = map[string][]string{
	"k8s.io/client-go/tools/cache": {"NewReflector", "NewNamedReflector", "NewNamespaceKeyedIndexerAndReflector", "New", "NewInformer",
		"NewInformerWithOptions", "NewIndexerInformer", "NewTransformingInformer", "NewTransformingIndexerInformer",
		"NewSharedInformer", "NewSharedIndexInformer", "NewSharedIndexInformerWithOptions"},
	"k8s.io/client-go/informers":                          {"NewSharedInformerFactory", "NewSharedInformerFactoryWithOptions", "NewFilteredSharedInformerFactory"},
	"k8s.io/client-go/dynamic/dynamicinformer":            {"NewDynamicSharedInformerFactory", "NewFilteredDynamicSharedInformerFactory", "NewFilteredDynamicInformer"},
	"k8s.io/client-go/metadata/metadatainformer":          {"NewSharedInformerFactory", "NewFilteredSharedInformerFactory", "NewFilteredMetadataInformer"},
	"k8s.io/client-go/tools/watch":                        {"UntilWithSync", "NewIndexerInformerWatcher", "NewIndexerInformerWatcherWithLogger"},
	"k8s.io/apiextensions-apiserver/pkg/client/informers": {"NewSharedInformerFactory"},
}

// TestWatchesComeBackSoon detects watches by their traces in the source.
func TestWatchesComeBackSoon(t *testing.T) {
	const why = "after a few cut connections client-go's own backoff has whoever decides by a watch wait up to a minute; " +
		"make the reflector with Backoff: kubeclient.WatchBackoff(), or say in ownBackoff why it does not matter"
	used, reflectors := map[string]bool{}, 0
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal", "cmd") {
			continue
		}
		allowed := ""
		for p := range ownBackoff {
			if under(f.pkg, p) {
				allowed = p
			}
		}
		names := map[string]string{} // local names of this file's imports
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if watching[imported] == nil {
				continue
			}
			name := imported[strings.LastIndex(imported, "/")+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = imported
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || names[x.Name] == "" {
				return true
			}
			if sel.Sel.Name == "NewReflectorWithOptions" {
				reflectors++
				if !hasWatchBackoff(call) {
					t.Errorf("%s makes a reflector with client-go's own backoff: %s", f.at(n), why)
				}
			}
			if slices.Contains(watching[names[x.Name]], sel.Sel.Name) {
				used[allowed] = true
				if allowed == "" {
					t.Errorf("%s calls %s.%s: %s", f.at(n), x.Name, sel.Sel.Name, why)
				}
			}
			return true
		})
	}
	for p := range ownBackoff {
		if !used[p] {
			t.Errorf("ownBackoff has %s, which watches nothing with client-go's own backoff", p)
		}
	}
	if reflectors < 4 {
		t.Errorf("only %d reflectors were found: those of Informer, of an application's objects, of limits and of crons' workflows are there", reflectors)
	}
}

// hasWatchBackoff reports whether a call has an argument ReflectorOptions{..., Backoff:
// kubeclient.WatchBackoff(), ...}.
func hasWatchBackoff(call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		options, ok := arg.(*ast.CompositeLit)
		if !ok {
			continue
		}
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
			made, _ := value.Fun.(*ast.SelectorExpr)
			if made != nil && made.Sel.Name == "WatchBackoff" {
				return true
			}
		}
	}
	return false
}
