//go:build race

package sandbox

// raceFactor is how much more memory, at most, a program takes under the race detector.
const raceFactor = 8
