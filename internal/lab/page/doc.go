// Package page has the form of all reports. A scenario describes its results as a Page:
//
//	report of a scenario ──▶ Page: verdict, warnings, problems, tables, charts, settings
//	Page ──▶ HTML      one self-contained page, for wide and narrow screens, light and dark
//	     └─▶ Markdown  the verdict and the tables, to paste into an issue
//
// The verdict comes first, then whatever went wrong, in full, then the tables with the charts, and at
// the end the hardware and the settings.
//
// The charts are drawn by uPlot (assets/uPlot.iife.min.js, MIT licence, assets/uPlot.LICENSE), which
// is embedded: the page loads nothing from the network. Apart from the embedded files the package is
// pure.
package page
