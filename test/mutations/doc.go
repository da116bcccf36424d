// Package mutations shows that tests can fail. Each mutation is a possible mistake in the code of
// Lockstep, with the test that finds it.
//
//	go test ./test/mutations      every mutation still applies to the code, and its test exists
//	make test-mutations           every mutation is made, for the compiler only
//	                              (go build -overlay), and its test must fail
//
// LOCKSTEP_MUTATION selects mutations by a part of their name.
package mutations
