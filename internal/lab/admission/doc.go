// Package admission puts something between a load and the API server that admits each pod: CEL
// rules in the server, or a webhook over TLS that takes CPU time.
//
//	Parse ──▶ Admission: none, cel or webhook:WORK:TIMEOUT
//	cel      Apply creates a policy with rules
//	webhook  Serve is a process of its own. It creates the configurations of a validating and a
//	         mutating webhook, which are itself, and answers the server's reviews
//
// Pods are not admitted if a webhook does not answer in time, as with any webhook whose failures
// are not ignored.
package admission
