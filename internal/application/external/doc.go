// Package external sends HTTP requests and e-mails that Applications ask for.
package external
