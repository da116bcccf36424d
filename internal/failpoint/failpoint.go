// Package failpoint lets tests make a part of the manager fail when it works on a certain object.
// Only tests arm failpoints, which package arch checks. While none is armed, Hit costs one atomic
// load.
package failpoint

import (
	"fmt"
	"sync/atomic"
)

// armed is the function that Hit calls, or nil.
var armed atomic.Pointer[func(part, key string)]

// Hit is called where a part of the manager works on the object under key.
func Hit[K any](part string, key K) {
	if f := armed.Load(); f != nil {
		(*f)(part, fmt.Sprint(key))
	}
}

// Arm makes every Hit call f until the test ends. f may fail in any way.
func Arm(t interface{ Cleanup(func()) }, f func(part, key string)) {
	armed.Store(&f)
	t.Cleanup(func() { armed.Store(nil) })
}
