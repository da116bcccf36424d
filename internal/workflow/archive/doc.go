// Package archive keeps finished workflows in an SQL database after they have left the cluster.
//
//	workflow ends ──▶ Keeper: reads it once ──▶ DB.Put ──▶ label workflow-archiving-status: Archived
//	                                              │        ──▶ may be deleted
//	        lockstep archive list, get, retry ──▶ DB.List, Get, Delete
//
// A database is an SQLite file or PostgreSQL, with the same schema. List reads only columns and
// indexes: only Get and Latest read the workflow itself, which is gzipped JSON.
package archive
