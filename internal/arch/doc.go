// Package arch contains the tests of the architecture: which package may import which, which
// packages may write to the API server, and what the pure packages may use. It has no other code.
//
// The tests parse the source and compile nothing, so they take less than a second. They cannot
// detect everything, for example a client passed on under an interface of another package.
// Reviewers must find such cases.
package arch
