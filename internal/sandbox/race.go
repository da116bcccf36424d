//go:build race

package sandbox

// raceFactor is the maximum factor by which the race detector increases a program's memory.
const raceFactor = 8
