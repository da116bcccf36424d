package machine

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// Dial connects from the host to an address (host:port) of the pod network. A deadline of ctx also
// applies to the connection.
func Dial(ctx context.Context, spec realnodes.Spec, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", spec.EgressSocket())
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", address); err != nil {
		conn.Close()
		return nil, err
	}
	// After a CONNECT the peer does not send first, so no data is lost in the reader's buffer.
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		conn.Close()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %s", address, resp.Status)
	}
	return conn, nil
}
