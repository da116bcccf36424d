// Package definitions watches definitions and the Policies and Workflows that Applications share,
// and compiles each definition once per version.
//
// Every state of a definition that users wrote is stored as a DefinitionRevision, to which
// Applications can refer as type@v2. Templates finds definitions on behalf of one Application.
package definitions
