// Package zones decides when revocable zones are open. A revocable zone is a set of nodes that the
// scheduler has only for a part of the day.
//
//	zone "night", 22:00-06:00      06:00           22:00
//	pods that allow the zone ──────▶│    closed     │──────▶ placed there
//	                                └─▶ preemptable pods are evicted, a share of them per period
//
// The package is pure: the time is an argument. Windows are hours of the day in one time zone, so on
// days on which clocks are changed a window is longer or shorter than on others.
package zones
