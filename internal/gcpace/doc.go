// Package gcpace sets how much garbage a program may have before it is collected: a part of what is alive, as GOGC does, and at
// least a number of bytes.
//
//	a collection ends ──▶ how much is alive? ──▶ the percentage that comes to the slack, or more
//
// A program whose heap is mostly caches wants a low percentage, or its memory is half garbage; but on a small heap that is a
// collection for every few requests. What a collection costs depends on what is alive, and how often it comes on the slack: so
// the time that collecting takes stays in proportion where the percentage alone would let it rise.
package gcpace
