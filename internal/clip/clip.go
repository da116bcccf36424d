// Package clip shortens texts for users to the size that an API, or a reader, accepts.
package clip

import "strings"

const mark = "…"

// Text returns s if it has at most bytesMax bytes. Otherwise it returns the beginning of s and "…",
// bytesMax bytes at most, without bytes that are not valid UTF-8, such as a part of a character.
func Text(s string, bytesMax int) string {
	if len(s) <= bytesMax {
		return s
	}
	return strings.ToValidUTF8(s[:max(0, bytesMax-len(mark))], "") + mark
}
