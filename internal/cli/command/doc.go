// Package command has what the commands of lockstep share: streams, exit codes, arguments, flags,
// the connection of a verb to its cluster, and printing.
//
//	NewVerb ──▶ Verb: kubectl's flags; Complete: names for the shell; Run: a client, a namespace
//	Usage, Usagef ──▶ errors of wrong usage, exit code 2
//	OutputFlag ──▶ -o; Print and PrintObject print in its forms
//	DryRun ──▶ --dry-run, and the word with which a verb reports its success
//
// Package names reads names of objects in arguments.
package command
