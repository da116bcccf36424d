// Package resource acts on objects of the cluster for a resource template, from inside the
// template's pod and with its service account.
//
//	manifest ──get | create | apply | patch | replace | delete──▶ object
//	object ──(read until a condition holds)──▶ fields as output parameters
package resource
