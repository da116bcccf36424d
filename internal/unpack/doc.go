// Package unpack decodes data of users that can be much larger than its encoding: compressed data,
// and YAML, whose aliases repeat a value for three bytes each. A kilobyte of either can stand for a
// gigabyte.
//
//	base64 ─▶ gzip ─▶ at most Limit.Bytes ─▶ JSON of at most Limit.Values ─▶ the caller's types
//	YAML of at most YAMLBytesMax ─▶ aliases expanded: at most YAMLBytesMax more ─▶ JSON
//
// The limits for all kinds of data are in limits.go. Data over a limit is a *TooLargeError, and
// costs no more memory than the limit.
package unpack
