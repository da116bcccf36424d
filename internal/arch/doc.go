// Package arch holds the tests that keep the architecture: which package may import which, who may write to the API
// server, and what the pure packages may use. It has no code of its own.
//
// The tests parse the source and compile nothing, so they take less than a second. What a test cannot see that way (a
// client passed on under an interface of somebody's own) is left to the reader.
package arch
