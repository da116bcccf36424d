// Package names reads the objects that users name in arguments, as kubectl does: NAME, KIND/NAME,
// or KIND NAME.
//
//	Take: a verb takes objects of one kind ──▶ the verb receives names only
//	Kind.Has, Kind.Name ──▶ for arguments that are read otherwise
//
// A word for a kind is never read as a name by mistake: it is an error of usage.
package names
