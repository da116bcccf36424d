// Package charts fetches charts from repositories with an index, OCI registries, and URLs of
// archives.
//
//	Get ──▶ known, young enough? ──yes──▶ chart
//	              │ no
//	              ▼
//	        a download, on its own goroutine ──▶ cached (one copy per digest) ──▶ wake
//
// Get does not wait for a download: the caller is woken when there is an answer. Downloads are
// bounded in number, size and time. The cache is bounded, too; the chart that was requested least
// recently is dropped first.
package charts
