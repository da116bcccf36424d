// Package shard divides keys among the managers of a cluster, by leases: each key is worked on by one manager, and by
// another soon after that one is gone.
//
//	leases of all members ──List──▶ Table.Observe ──▶ Owns(key)
//	own lease ◀──Put, every Period── Table.Own: who this member takes to be there
//
// A key belongs to the member that rendezvous hashing gives it among those that are alive, so that a member that comes or
// goes moves only its own share of the keys. For a while members may differ about who is alive. Therefore each writes in
// its lease the members that it acts upon, and acts on a key only when three things are so:
//
//  1. the key is its own among the members that it has written into its lease, and a list of the leases that was begun
//     after that shows that they are still those that are alive;
//  2. no other member alive has written a view in which the key is that member's;
//  3. its own lease has been renewed lately: a member that cannot renew its lease stops before others take it for dead, and
//     goes on only after a list that was begun after the next renewal.
//
// Of two members that come at the same time at least one sees the other's lease, for each writes before it lists. Clocks
// are not compared: a lease has expired when it has not changed for Expiry since it was first seen as it is. All that is
// asked of clocks is that they run at about the same speed.
package shard
