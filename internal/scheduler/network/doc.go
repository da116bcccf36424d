// Package network models the network of the cluster's nodes as a tree of domains: racks, rows,
// halls. It is pure: it has no client, clock, goroutine or log.
//
//	HyperNodes ─SetHyperNode─▶ ┌───────┐
//	nodes ─────SetNode───────▶ │ Model │ ──Tree──▶ Tree: domains, parents before children
//	labels of tiers ─New─────▶ └───────┘           Faults, by HyperNode
//
// Domains come from HyperNodes. Nodes that no HyperNode contains are divided by the labels given to
// New, if any: nodes with the same values of a tier's label, and of those of the tiers above it,
// form a domain.
//
// Invariants:
//   - A domain has one parent, of a higher tier, or none. So there are no cycles.
//   - A node is directly in one domain or in none.
//   - A member that breaks these rules is not counted, and stated as a fault of the HyperNode that
//     lists it. The HyperNode of the lowest tier, and among those the first by name, has the member.
//     Other members and HyperNodes are not affected.
//   - A Tree is immutable, and depends on the HyperNodes and nodes alone, not on their order.
package network
