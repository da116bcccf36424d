// Package archive keeps finished workflows in an SQL database after they have left the cluster.
//
//	workflow ends ──▶ Keeper: reads it once ──▶ DB.Put ──▶ label workflow-archiving-status: Archived ──▶ may be deleted
//	                                              │
//	        lockstep archive list, get, retry ──▶ DB.List, Get, Delete
//
// A database is SQLite in a file, or PostgreSQL; the schema is the same. Lists are answered from
// columns and indexes alone: only Get and Latest read the workflow itself, which is gzipped JSON.
package archive
