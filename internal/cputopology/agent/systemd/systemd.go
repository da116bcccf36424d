// Package systemd tells systemd the CPU sets of its units, on nodes whose kubelet uses systemd's
// cgroup driver.
//
// systemd writes the cgroups of its units again when it reloads its configuration (daemon-reload), or
// when anybody changes one of them. With the properties AllowedCPUs, AllowedMemoryNodes and
// CPUQuotaPerSecUSec it then writes the agent's values. The properties are runtime ones: they are gone
// after a reboot, and with the unit.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/godbus/dbus/v5"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// DefaultSocket is where systemd listens for root, with or without a message bus.
const DefaultSocket = "/run/systemd/private"

// callTimeout bounds a call. systemd answers in a millisecond.
const callTimeout = 5 * time.Second

// Units sets properties of systemd's units. It must be used by one goroutine only.
type Units struct {
	socket string
	conn   *dbus.Conn
}

// New returns Units for the systemd that listens at a socket. It connects when it is used.
func New(socket string) *Units { return &Units{socket: socket} }

// property is a unit's property, as systemd's method takes it.
type property struct {
	Name  string
	Value dbus.Variant
}

// Allow sets the CPUs that the processes of a unit may use, and, unless they are nil, its memory nodes
// and its CFS quota in thousandths of a CPU (0 for none). Empty sets lift the restriction. A unit that
// does not exist is not an error.
func (u *Units) Allow(unit string, cpus cpuset.Set, mems *cpuset.Set, quota *int64) error {
	properties := []property{{"AllowedCPUs", dbus.MakeVariant(mask(cpus))}}
	if mems != nil {
		properties = append(properties, property{"AllowedMemoryNodes", dbus.MakeVariant(mask(*mems))})
	}
	if quota != nil {
		micros := uint64(math.MaxUint64) // none
		if *quota > 0 {
			micros = uint64(*quota) * 1000
		}
		properties = append(properties, property{"CPUQuotaPerSecUSec", dbus.MakeVariant(micros)})
	}
	err := u.call("SetUnitProperties", unit, true, properties)
	var refused dbus.Error
	if errors.As(err, &refused) && refused.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("systemd: AllowedCPUs of %s: %w", unit, err)
	}
	return nil
}

// call calls a method of systemd's manager. It connects anew if the connection is lost.
func (u *Units) call(method string, args ...any) error {
	for fresh := false; ; {
		if u.conn == nil {
			fresh = true
			if err := u.connect(); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		err := u.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
			CallWithContext(ctx, "org.freedesktop.systemd1.Manager."+method, 0, args...).Err
		cancel()
		var refused dbus.Error
		if err == nil || errors.As(err, &refused) {
			return err
		}
		u.Close()
		if fresh {
			return err
		}
	}
}

func (u *Units) connect() error {
	conn, err := dbus.Dial("unix:path=" + u.socket)
	if err != nil {
		return fmt.Errorf("systemd: %w", err)
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal("0")}); err != nil {
		return fmt.Errorf("systemd: %w", errors.Join(err, conn.Close()))
	}
	u.conn = conn
	return nil
}

// Close ends the connection.
func (u *Units) Close() {
	if u.conn != nil {
		_ = u.conn.Close() // nothing is lost with it
		u.conn = nil
	}
}

// mask encodes a set as systemd takes it: bit i of byte j stands for 8*j+i.
func mask(s cpuset.Set) []byte {
	out := []byte{}
	for id := range s.All() {
		for len(out) <= id/8 {
			out = append(out, 0)
		}
		out[id/8] |= 1 << (id % 8)
	}
	return out
}
