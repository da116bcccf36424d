// Package kubeclient says how the programs connect to an API server: which kubeconfig, which encoding, how many
// connections. Everything that talks to a server starts from the *rest.Config that Load returns.
//
//	Load ──▶ *rest.Config ──▶ Clientset        built-in types, in protobuf
//	                     ├──▶ ForGroupVersion  one group and version, in protobuf or JSON as its types allow
//	                     ├──▶ LeanCore         the core types, with pods that are decoded in part
//	                     ├──▶ ForRaw           any types, as their JSON, with their metadata read
//	                     ├──▶ Connections      HTTP clients that share no TCP connection
//	                     └──▶ Calls            short requests at little cost (package wire), and Decoder for the answers
//
// There are no client-side rate limits anywhere: what the server can take is for the server to say (429) and for
// internal/apiwriter to find out.
package kubeclient
