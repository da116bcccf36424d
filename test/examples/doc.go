// Package examples runs the manifests of examples/ as the README tells users to.
package examples
