// Package ociimage builds OCI image archives from files on this machine: from a directory with a
// root file system, or from one program. Nothing is pulled from a registry.
package ociimage
