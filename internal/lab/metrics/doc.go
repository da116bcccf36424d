// Package metrics reads what the processes of a measurement say about themselves in Prometheus'
// text format, and reduces it to figures of one run. It is pure: package rig fetches the texts.
//
//	text before, text after ──Parse──▶ Page, Page ──Compute──▶ Figures: requests, flow control, etcd,
//	texts in between ────────Parse──▶ Page ──Depths──▶ Sample     queues, throttling
package metrics
