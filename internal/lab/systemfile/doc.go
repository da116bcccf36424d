// Package systemfile decodes the files that describe systems under test:
//
//	text ──▶ Parse ──▶ *File: manifests, programs, the template of a job, which pods are its own
//	             └──▶ an error that names the field and its line
//
// Package system makes a system from a File. This package is pure. docs/systems.md describes the
// format for users.
package systemfile
