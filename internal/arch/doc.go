// Package arch holds the tests that keep the architecture: which package may import which, who may write to the API
// server, and what the pure packages may use. It has no code of its own.
package arch
