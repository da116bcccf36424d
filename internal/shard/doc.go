// Package shard divides keys among the managers of a cluster by leases: one manager works on each
// key, and another takes the key over soon after that manager has ended.
//
//	leases of all members ──List──▶ Table.Observe ──▶ Owns(key)
//	own lease ◀──Put, every Period── Table.Own: the members that this member believes to be alive
//
// A key belongs to the member that rendezvous hashing selects among the members that are alive, so
// that a member that comes or goes moves only its own share of the keys. For some time members may
// differ about which members are alive. Therefore each member writes the member list that it acts
// upon (its view) into its lease, and acts on a key only under three conditions:
//
//  1. The key belongs to this member both in the view that it has written into its lease and among
//     the live members of a list that began after that write.
//  2. No other live member has written a view in which the key belongs to that other member.
//  3. Its own lease has been renewed within Fence: a member that cannot renew its lease stops
//     before others consider it dead, and continues only after a list that began after the next
//     renewal.
//
// Of two members that start at the same time, at least one sees the other's lease, because each
// writes before it lists. Clocks are not compared: a lease has expired when it has not changed for
// Expiry since its current state was first seen. The only assumption is that all clocks run at
// about the same speed.
package shard
