// Package series is what scenarios share that make one run after another and say of each what came of it: the run's verdict,
// the report that grows by it, and the folder with the results.
//
//	measure ──▶ Run ──▶ Report.Make ──▶ result.json             figures, the configuration among them
//	                                    report.html             the same for people, light and dark
//	                                    NN-RUN/events.jsonl.gz  what was observed, one event a line
//
// What a run consists of, and which figures it has, is each scenario's own.
package series
