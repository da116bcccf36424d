// Package ociimage makes OCI image archives of files on this machine: of a folder that is a root file system, or of one
// program. Nothing is pulled from anywhere.
package ociimage
