// Package advisories checks the pinned modules against the Go vulnerability database.
package advisories
