package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// requestError says which request failed.
type requestError struct {
	method, url string
	err         error
}

func (e *requestError) Error() string { return fmt.Sprintf("%s %s: %v", e.method, e.url, e.err) }

func (e *requestError) Unwrap() error { return e.err }

// explained is an error worded by this package.
type explained struct {
	text string
	err  error // an error without text from others, or nil
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.err }

// syscalls are the connection errors that are reported with their own text.
var syscalls = []syscall.Errno{
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EPIPE,
	syscall.EADDRNOTAVAIL, syscall.EACCES, syscall.EPERM, syscall.EMFILE, syscall.ENFILE,
}

// explain returns an error worded by this package, because errors of libraries quote what they
// could not parse.
func explain(err error) error {
	var (
		refused   *RefusedError
		before    *explained
		name      *net.DNSError
		untrusted x509.UnknownAuthorityError
		other     x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		timeout   net.Error
	)
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &before):
		return before
	case errors.Is(err, context.Canceled):
		return &explained{"the request was given up", context.Canceled}
	case errors.Is(err, errRedirects):
		return errRedirects
	case errors.As(err, &name):
		if name.IsNotFound {
			return &explained{text: fmt.Sprintf("there is no host %s", brief(name.Name))}
		}
		return &explained{text: fmt.Sprintf("host %s cannot be resolved now", brief(name.Name))}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &explained{"there is no answer in time", context.DeadlineExceeded}
	case errors.As(err, &untrusted):
		return &explained{text: "the server's certificate is not signed by an authority that the manager trusts"}
	case errors.As(err, &other):
		return &explained{text: "the server's certificate is for another host"}
	case errors.As(err, &invalid):
		return &explained{text: "the server's certificate is not valid"}
	case errors.As(err, &record):
		return &explained{text: "the server does not speak TLS"}
	case errors.As(err, &alert):
		return &explained{text: "the server refuses the TLS handshake"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &explained{text: "the connection ended before the answer did"}
	}
	for _, e := range syscalls {
		if errors.Is(err, e) {
			return &explained{e.Error(), e}
		}
	}
	return &explained{text: "there is no answer of HTTP that can be read"}
}
