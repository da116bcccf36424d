// Package threshold decides whether a figure of a run crosses a bound that the user has set, such as
// ratioToFloor>1.2. Figures are named as in the JSON of the run. It is pure.
package threshold
