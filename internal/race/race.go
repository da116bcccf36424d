//go:build race

package race

// Factor is the maximum factor by which the race detector increases a program's memory. It is 1 in
// programs without the race detector.
const Factor = 8
