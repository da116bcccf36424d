// Package examples runs the manifests of examples/ as README tells users to.
package examples
