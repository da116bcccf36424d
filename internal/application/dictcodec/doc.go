// Package dictcodec compresses texts that resemble each other.
package dictcodec
