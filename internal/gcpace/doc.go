// Package gcpace sets how much garbage a program may have before a garbage collection: a percentage
// of the live heap, like GOGC, but at least a number of bytes.
//
//	a collection ends ──▶ size of the live heap? ──▶ the percentage that equals the slack, or more
//
// A program whose heap is mostly caches needs a low percentage, or half of its memory is garbage;
// but on a small heap, a low percentage means a collection every few requests. The cost of a
// collection depends on the live heap, and the interval between collections on the slack: so the
// share of time spent on collections stays proportional where the percentage alone would let it
// rise.
package gcpace
