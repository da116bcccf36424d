// Package admission says, without a cluster, what the API server refuses in new objects of our kinds.
//
//	CRDs      ──▶ New ──▶ Rules ──▶ Check(object): refusals with the path of their field
//	policies  ──▶
//
// Check does what the API server does with a create request, with the server's own libraries: unknown
// fields, defaults, the schema, its list types, its CEL rules, then the ValidatingAdmissionPolicies.
// Policies that ask who sends the request are left out, since there is no request. The tests in
// test/rules give the same objects to Check and to the API server.
package admission
