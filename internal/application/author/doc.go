// Package author finds the identity that an Application's writes impersonate: the author that the
// API server has recorded, or the service account that the Application names.
package author
