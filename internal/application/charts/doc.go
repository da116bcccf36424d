// Package charts brings charts from where they are published: repositories with an index, OCI registries, and addresses
// of archives.
//
//	Get ──▶ known, young enough? ──yes──▶ chart
//	              │ no
//	              ▼
//	        a download, on a goroutine of its own ──▶ kept by digest ──▶ wake
//
// Get does not wait: who asks is told when there is an answer. Downloads are bounded in number, size and time; what is
// kept is bounded too, and what has not been asked for longest goes first.
package charts
