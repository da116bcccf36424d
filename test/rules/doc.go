// Package rules tests what the API server itself refuses and defaults, while no Lockstep program
// runs. It tests each rule of the CRDs in config/crd and of the policies in config/policies with an
// object that breaks it.
package rules
