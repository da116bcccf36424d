// Package unpack reads data of users whose cost is not its size: what is compressed, and YAML, whose aliases repeat a value for
// three bytes each. A kilobyte of either can stand for a gigabyte.
//
//	base64 ─▶ gzip ─▶ at most Limit.Bytes ─▶ JSON of at most Limit.Values ─▶ the caller's types
//	YAML of at most YAMLBytesMax ─▶ aliases written out: at most YAMLBytesMax more ─▶ JSON
//
// The limits of all kinds of data are in limits.go. What is over one is a *TooLargeError, and has cost no more memory than the
// limit.
package unpack
