// Package rules tests what the API server itself refuses and fills in, with no Lockstep program running: the CRDs of
// config/crd and the policies of config/policies, each rule by an object that breaks it.
package rules
