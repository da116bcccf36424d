// Package stores tests that artifacts are stored, listed, loaded and deleted on real servers: MinIO
// with a KMS, the name node and data node of HDFS, also with Kerberos, Azure's own emulator, and a
// server with the API of Google Cloud Storage. hack/stores.sh fetches them into bin/stores; a server that is not
// there is skipped with the reason.
package stores
