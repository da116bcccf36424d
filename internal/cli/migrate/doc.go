// Package migrate is the command 'lockstep migrate': it prints what package internal/migrate says of
// manifests, or of the objects of a cluster.
package migrate
