// Package command is what the commands of lockstep have in common: streams, exit codes, arguments,
// flags, how a verb reaches its cluster, and how it prints.
//
//	NewVerb ──▶ Verb: kubectl's flags; Complete: names for the shell; Run: a client, a namespace
//	Usage, Usagef ──▶ errors of wrong usage, exit code 2
//	OutputFlag ──▶ -o; Print and PrintObject print in its forms
//	DryRun ──▶ --dry-run, and the word that a verb reports its success with
//
// Names of objects in arguments are the subject of package names.
package command
