// Package report is what a measurement says to others: the JSON of `bench run -o json`, the table for a terminal, and
// one self-contained HTML page. It computes nothing that analyse has not found.
//
// The page's charts are drawn by uPlot (assets/uPlot.iife.min.js, MIT licence, assets/uPlot.LICENSE), which is embedded in it: the page
// loads nothing from anywhere.
package report
