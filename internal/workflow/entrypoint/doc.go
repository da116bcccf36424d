// Package entrypoint finds out which command an image runs by default, by asking its registry.
//
//	image, pull secrets ──Look──▶ cache ──miss──▶ registry, through the egress guard ──▶ entrypoint
//
// The credentials are those with which a node would pull the image: the caller reads the pull
// secrets of the pod and of its service account. An answer is cached together with the credentials
// that got it, so that nobody sees what an image of others runs. The cache, the answers and the
// number of requests are bounded.
package entrypoint
