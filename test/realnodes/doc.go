// Package realnodes tests nodes that run containers from end to end: with the commands a user gives, and with what the
// machine looks like before and after. Where the machine cannot run them every test is skipped, and says why.
package realnodes
