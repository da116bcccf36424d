// Package config reads scheduler configurations in Volcano's format, and says what each part of one
// means for Lockstep's scheduler.
//
//	actions, tiers of plugins, arguments ──Parse──▶ Settings   what the scheduler is configured with
//	                                           └──▶ Findings   each part: works, differs, is not needed, is missing
//
// Lockstep's scheduler is not divided into actions and plugins: most of what they do always applies,
// and the configuration can only switch some of it off, or give it figures. A configuration that
// cannot be meant as it is (an unknown action, an argument of the wrong type) is an error that names
// the part and its line.
//
// The package is pure: its results depend only on the text.
package config
