// Package report presents a measurement: the JSON of `bench run -o json`, the table for a terminal,
// and one self-contained HTML page. It computes nothing beyond the results of package analyse.
//
// The charts of the page are drawn by uPlot (assets/uPlot.iife.min.js, MIT licence,
// assets/uPlot.LICENSE), which is embedded: the page loads nothing from the network.
package report
