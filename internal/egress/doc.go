// Package egress makes every request that the manager sends on behalf of a user: for charts, steps
// of applications, manifests and e-mails. The author of an Application chooses the address, and the
// manager's network gives access to more than the author may reach: services without passwords, the
// nodes, the clouds' metadata.
//
//	request ──Do──▶ scheme ──▶ proxy? ──no──▶ resolve ──▶ judge each address at connect ──▶ answer
//	                             └──yes─▶ judge the name, and its local addresses ──▶ proxy
//
// A connection is judged by the dialled address, after resolution, so a name that resolves to
// another address from one moment to the next gains nothing. Each redirect is a new request and is
// judged again. Addresses that are not public are refused, in all notations, unless Config.Allow
// lists them. The clouds' metadata addresses are refused unless Config.Allow lists the exact
// address or name.
//
// Errors are worded by this package. They never contain bytes of a response, which may be anyone's
// data.
package egress
