//go:build !race

package race

// Factor is 1: this program has no race detector.
const Factor = 1
