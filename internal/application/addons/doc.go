// Package addons fetches addons from registries: repositories with an index and OCI registries, in
// which addons are packed as charts are, Git repositories, and folders.
//
//	Registry, name, version ── Fetcher.Addon ──▶ addon.Addon
//	Registry ───────────────── Fetcher.List ───▶ names and newest versions
//
// It is for programs on a user's own machine, and caches nothing. Downloads are bounded in size and
// time; package addon bounds what they unpack to.
package addons
