// Package archive is the SQL of workflows: it keeps finished workflows in a database after they have
// left the cluster, and locks that controllers of several clusters share (Locks, in locks.go).
//
//	workflow ends ──▶ Keeper: reads it once ──▶ DB.Put ──▶ mark: annotation lockstep.dev/archived, or
//	                                              │        label workflow-archiving-status: Archived
//	                                              │        ──▶ may be deleted
//	        lockstep archive list, get, retry ──▶ DB.List, Get, Delete
//
// A database has Lockstep's own tables (SQLite file or PostgreSQL, own.go), or those of Argo's archive
// (PostgreSQL or MySQL, shared.go), which its server reads. List reads only columns and indexes of the
// own tables: only Get and Latest read the workflow itself, which is gzipped JSON.
package archive
