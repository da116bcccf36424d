package settings

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Synchronization is the database with the locks that controllers of several clusters share.
type Synchronization struct {
	Connection
	// ControllerName distinguishes the controllers that share the tables.
	ControllerName string
	// The names of the tables. Migrate is true if missing tables are created.
	LimitTable, StateTable, ControllerTable, LockTable string
	Migrate                                            bool
	// Poll is how often a lock is asked for that was not free. Heartbeat is how often the controller
	// shows that it is active; one that did not for Inactive is not waited for.
	Poll, Heartbeat, Inactive time.Duration
}

// synchronization is the value of the key synchronization.
type synchronization struct {
	databases                  `json:",inline"`
	EnableAPI                  bool   `json:"enableAPI,omitempty"`
	ControllerName             string `json:"controllerName,omitempty"`
	LimitTableName             string `json:"limitTableName,omitempty"`
	StateTableName             string `json:"stateTableName,omitempty"`
	ControllerTableName        string `json:"controllerTableName,omitempty"`
	LockTableName              string `json:"lockTableName,omitempty"`
	PollSeconds                *int   `json:"pollSeconds,omitempty"`
	HeartbeatSeconds           *int   `json:"heartbeatSeconds,omitempty"`
	InactiveControllerSeconds  *int   `json:"inactiveControllerSeconds,omitempty"`
	SemaphoreLimitCacheSeconds *int   `json:"semaphoreLimitCacheSeconds,omitempty"`
}

// controllerNameMax is the size of the column that has the name of a controller.
const controllerNameMax = 64

func (s *Settings) synchronization(raw json.RawMessage) error {
	var c synchronization
	if err := strictJSON(raw, &c); err != nil {
		return err
	}
	if c.EnableAPI {
		s.ignore("synchronization.enableAPI", ofServer)
	}
	if c.SemaphoreLimitCacheSeconds != nil {
		s.ignore("synchronization.semaphoreLimitCacheSeconds", "ConfigMaps with limits are watched, and those of the database are read each time")
	}
	connection, _, err := s.connection("synchronization", &c.databases)
	if err != nil || connection == nil {
		return err
	}
	if c.ControllerName == "" || len(c.ControllerName) > controllerNameMax {
		return fmt.Errorf("controllerName: a name of 1 to %d characters is required, another one in each cluster", controllerNameMax)
	}
	to := &Synchronization{Connection: *connection, ControllerName: c.ControllerName, Migrate: !c.SkipMigration}
	for _, t := range []struct {
		field, name, usual string
		to                 *string
	}{
		{"limitTableName", c.LimitTableName, "sync_limit", &to.LimitTable},
		{"stateTableName", c.StateTableName, "sync_state", &to.StateTable},
		{"controllerTableName", c.ControllerTableName, "sync_controller", &to.ControllerTable},
		{"lockTableName", c.LockTableName, "sync_lock", &to.LockTable},
	} {
		if *t.to = cmp.Or(t.name, t.usual); !tableNames.MatchString(*t.to) {
			return fmt.Errorf("%s: %q is no name of a table", t.field, t.name)
		}
	}
	for _, d := range []struct {
		field   string
		seconds *int
		usual   int
		to      *time.Duration
	}{
		{"pollSeconds", c.PollSeconds, 5, &to.Poll},
		{"heartbeatSeconds", c.HeartbeatSeconds, 60, &to.Heartbeat},
		{"inactiveControllerSeconds", c.InactiveControllerSeconds, 300, &to.Inactive},
	} {
		seconds := d.usual
		if d.seconds != nil {
			seconds = *d.seconds
		}
		if seconds < 1 || seconds > secondsMax {
			return fmt.Errorf("%s: %d is not between 1 and %d", d.field, seconds, secondsMax)
		}
		*d.to = time.Duration(seconds) * time.Second
	}
	if to.Inactive <= to.Heartbeat {
		return errors.New("inactiveControllerSeconds: must be more than heartbeatSeconds")
	}
	s.Synchronization = to
	return nil
}

// secondsMax is a day.
const secondsMax = 24 * 60 * 60
