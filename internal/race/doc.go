// Package race tells whether the program was built with Go's race detector, which multiplies memory
// and CPU time: limits of memory allow for it, and tests of limits are skipped with it.
package race

// Enabled is set if the program has the race detector.
const Enabled = Factor > 1
