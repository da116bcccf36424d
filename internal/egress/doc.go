// Package egress makes every request that the manager sends on behalf of a user: for charts, for steps of applications, for
// manifests and e-mails. The author of an Application chooses the address, and the manager stands in a network where more
// can be reached than its author may: services without passwords, the nodes, the clouds' metadata.
//
//	request ──Do──▶ scheme ──▶ proxy? ──no──▶ resolve ──▶ judge each address at connect ──▶ answer
//	                             └──yes─▶ judge the name, and what it resolves to here ──▶ proxy
//
// A connection is judged by the address that is dialled, after resolution, so that a name which resolves to another address
// from one moment to the next gains nothing. Each redirect is a new request and is judged again. Refused are the addresses
// that are not public, in all their notations, unless Config.Allow lists them, and the clouds' metadata addresses unless
// Config.Allow lists that very address or name.
//
// Errors say what went wrong in words of this package. They never hold bytes of an answer, which may be anything's.
package egress
