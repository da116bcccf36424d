// Package allocate chooses CPUs for pods: which CPUs on a node, and which node.
package allocate
