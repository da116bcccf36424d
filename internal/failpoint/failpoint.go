// Package failpoint lets tests make a part of the manager fail when it works on a certain object. Nothing but tests arms failpoints:
// package arch sees to that. While none is armed, Hit costs the reading of one word.
package failpoint

import (
	"fmt"
	"sync/atomic"
)

// armed is what tests have armed.
var armed atomic.Pointer[func(part, key string)]

// Hit is called where a part of the manager works on the object under key.
func Hit[K any](part string, key K) {
	if f := armed.Load(); f != nil {
		(*f)(part, fmt.Sprint(key))
	}
}

// Arm has f called at every Hit until the test ends. f fails as it likes.
func Arm(t interface{ Cleanup(func()) }, f func(part, key string)) {
	armed.Store(&f)
	t.Cleanup(func() { armed.Store(nil) })
}
