// Package applications measures how fast a manager deploys applications, at what cost, and whether
// correctly.
//
//		Shape ──▶ applications ──▶ a bare client creates them ──▶ API server ──▶ audit log: who wrote what, when
//		                                                             │    └────▶ a watch: which application runs, since when
//		        real controller manager: Deployments become ready ◀──┘
//
//	  1. deploy   all at once, until all run                 rate, latency, writes, CPU, memory,
//	     ratio to the floor
//	  2. hold     nobody does anything                       CPU at rest, memory, writes (none)
//	  3. update   rounds, each changes a field of each       rate, writes, memory after each
//	  4. delete   all at once, until nothing is left         rate, writes
//
// The floor is a bare client that writes the same objects, records and statuses to the same control
// plane, without a controller in between and with no load besides.
package applications
