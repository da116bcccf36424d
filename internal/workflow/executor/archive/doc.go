// Package archive packs a file or directory into one artifact and unpacks it again.
//
// An archive has one entry at its top, with the name of the packed file. Unpack renames that entry
// to the requested name; an archive with several entries at its top becomes a directory of them.
// Unpack writes nothing outside the destination, whatever an archive contains.
package archive
