package faultproxy

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Request is a request of the client.
type Request struct {
	// The body has been read: GetBody returns it, any number of times.
	*http.Request
	// Verb is the API's verb: create, update, patch, delete, deletecollection, get, list, watch.
	Verb string
	// Resource is the plural name, followed by a slash and the subresource if there is one. Empty
	// for discovery and health.
	Resource        string
	Group           string
	Namespace, Name string
	// N is the number of the request among all requests, from 1.
	N int
}

// Write reports whether the request changes something.
func (r *Request) Write() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

var resolver = request.RequestInfoFactory{
	APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
}

func newRequest(r *http.Request, n int) *Request {
	out := &Request{Request: r, N: n, Verb: strings.ToLower(r.Method)}
	info, err := resolver.NewRequestInfo(r)
	if err != nil || !info.IsResourceRequest {
		return out
	}
	out.Verb, out.Resource, out.Group = info.Verb, info.Resource, info.APIGroup
	out.Namespace, out.Name = info.Namespace, info.Name
	if info.Subresource != "" {
		out.Resource += "/" + info.Subresource
	}
	return out
}
