// Package config holds the objects that Lockstep needs in a cluster, as YAML compiled into the program:
//
//	crd/          generated from the types in api/ (make generate)
//	policies/     rules that the API server checks beyond the CRDs' schemas
//	rbac.yaml     the manager's rights, and users' rights to our kinds
//	rbac-applications.yaml  the same for applications, with the namespace of the definitions that everyone sees
//	applications-act-as-manager.yaml  the manager's rights where applications do not act as their authors
//	applications-any-kind.yaml  the manager's right to every kind, where that is asked for
//	served-kinds.yaml  the rule that outputs of definitions have kinds that are served, where that is asked for
//	manager.yaml  the manager's Deployment, for clusters that it runs in
//	cpus.yaml     rules of what is said of pods' CPUs, for clusters where that is chosen: each write of a pod pays for them
//	agent.yaml    the node agents, for clusters whose nodes shall have them
//	flowcontrol.yaml
//	queues.yaml   the queues that always exist
//	definitions/  the built-in definitions of applications
//	views/        queries about applications that clients evaluate
//	retired.yaml  what earlier versions installed and this one does not
//
// Package internal/install brings them into a cluster.
package config

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed crd/*.yaml policies/*.yaml *.yaml
var files embed.FS

// CRDs returns the CustomResourceDefinitions of our kinds.
func CRDs() []*unstructured.Unstructured { return read("crd/*.yaml") }

// Policies returns the ValidatingAdmissionPolicies and their bindings.
func Policies() []*unstructured.Unstructured { return read("policies/*.yaml") }

// CPUPolicies returns the policies, and their bindings, of what is said of pods' CPUs. They look at every pod that is written,
// which costs the API server a fifth of its CPU time for it: where nobody chooses CPUs they are not worth it.
func CPUPolicies() []*unstructured.Unstructured { return read("cpus.yaml") }

// CPUSchedulersPolicy is the name of the policy that gives pods that request CPUs Lockstep's scheduler, and of its binding.
const CPUSchedulersPolicy = "cpu-schedulers.topology.lockstep.dev"

// RBAC returns the manager's namespace, identity and rights, and users' rights to our kinds.
func RBAC() []*unstructured.Unstructured {
	return append(read("rbac.yaml"), read("rbac-applications.yaml")...)
}

// AuthorsPolicy is the name of the policies that record who wrote an application, and of their bindings.
const AuthorsPolicy = "application-authors.lockstep.dev"

// AccountsPolicy is the name of the policy that checks who may write an application that acts as a service account.
const AccountsPolicy = "application-service-accounts.lockstep.dev"

// ApplicationEditRole is the ClusterRole of those who may write applications. Its labels make it a part of edit and admin.
const ApplicationEditRole = "lockstep-application-edit"

// ActAsManager returns what takes the place of objects of the same names in RBAC, where applications act with the manager's rights.
func ActAsManager() []*unstructured.Unstructured { return read("applications-act-as-manager.yaml") }

// AnyKind returns the manager's right to read and delete objects of every kind, or also to write them, for applications that act
// with the manager's rights.
func AnyKind(write bool) []*unstructured.Unstructured {
	out := read("applications-any-kind.yaml")
	if write {
		rule := out[0].Object["rules"].([]any)[0].(map[string]any)
		rule["verbs"] = append(rule["verbs"].([]any), "create", "update", "patch")
	}
	return out
}

// ServedKindsName is the name of the ConfigMap, in the namespace vela-system, that lists the kinds that the API server serves.
const ServedKindsName = "lockstep-served-kinds"

// ServedKinds returns the policy that refuses definitions whose outputs have kinds that are not served, its list of kinds, and the
// manager's rights to keep that list.
func ServedKinds() []*unstructured.Unstructured { return read("served-kinds.yaml") }

// Manager returns the Deployment of the manager.
func Manager() []*unstructured.Unstructured { return read("manager.yaml") }

// Agent returns the DaemonSet of the node agents.
func Agent() []*unstructured.Unstructured { return read("agent.yaml") }

// FlowControl returns the manager's share of the API server's concurrency.
func FlowControl() []*unstructured.Unstructured { return read("flowcontrol.yaml") }

// Queues returns the queues that always exist.
func Queues() []*unstructured.Unstructured { return read("queues.yaml") }

// Retired returns what earlier versions installed and this one does not, as they installed it: installation removes it.
func Retired() []*unstructured.Unstructured { return read("retired.yaml") }

// read returns new objects each time: callers may change them.
func read(pattern string) []*unstructured.Unstructured {
	names, err := fs.Glob(files, pattern)
	if err != nil {
		panic(err) // a fault in a constant above
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			panic(err)
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				panic(fmt.Sprintf("config/%s: %v", path.Clean(name), err)) // compiled in, and read by the tests
			}
			if len(object.Object) > 0 {
				objects = append(objects, object)
			}
		}
	}
	return objects
}
