// Package realnodes tests nodes that run containers, end to end: with the commands of a user, and
// by comparing the machine before and after. On a machine that cannot run such nodes every test is
// skipped with the reason.
package realnodes
