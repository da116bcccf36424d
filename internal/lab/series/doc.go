// Package series is shared by scenarios that make one run after another: the verdict of a run, the
// report that grows with each run, and the directory with the results.
//
//	measure ──▶ Run ──▶ Report.Make ──▶ result.json             figures, the configuration among them
//	                                    report.html             the same for people, light and dark
//	                                    NN-RUN/events.jsonl.gz  what was observed, one event a line
//
// The steps of a run and its figures are each scenario's own.
package series
