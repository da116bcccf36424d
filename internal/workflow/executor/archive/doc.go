// Package archive makes a file or directory into one artifact and back.
//
// An archive has one entry at its top, named as what was packed. Unpack gives that entry the name that is asked for; an
// archive with several entries at its top becomes a directory of them. Nothing is written outside of the destination,
// whatever an archive says.
package archive
