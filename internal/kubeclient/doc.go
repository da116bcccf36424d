// Package kubeclient configures how the programs connect to an API server: which kubeconfig, which
// encoding, how many connections. All code that talks to a server starts from the *rest.Config that
// Load returns.
//
//	Load ──▶ *rest.Config ──▶ Clientset        built-in types, in protobuf
//	                     ├──▶ ForGroupVersion  one group and version, in protobuf or JSON as its types allow
//	                     ├──▶ TrimmedCore      the core types; pods are decoded in part
//	                     ├──▶ Metadata         any types, their metadata only
//	                     ├──▶ ForRaw           any types, as JSON with decoded metadata
//	                     ├──▶ Connections      HTTP clients that share no TCP connection
//	                     └──▶ Calls            short requests at little cost (package http2client), and Decoder for the answers
//
// There are no client-side rate limits: the server reports its own limits (429), and
// internal/apiwriter adapts to them.
package kubeclient
