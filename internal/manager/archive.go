package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/workflow/archive"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/controller"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// archiveTargets remembers the target that a configuration has, so that the same target is the same
// pointer.
type archiveTargets struct {
	mu     sync.Mutex
	of     *settings.Settings
	target *archive.Target
}

// archiveTarget returns where finished workflows are archived: the database of the flag --archive, else
// that of the configuration of workflows, else nil.
func (m *Manager) archiveTarget() *archive.Target {
	now := m.settings.Current()
	a := &m.archiving
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of != nil && (a.of == now || a.of.Refused == now.Refused && a.of.InstanceID == now.InstanceID &&
		reflect.DeepEqual(a.of.Persistence, now.Persistence)) {
		a.of = now
		return a.target
	}
	a.of, a.target = now, nil
	switch {
	case m.cfg.Archive != "":
		a.target = &archive.Target{
			Open:   func(ctx context.Context) (*archive.DB, error) { return archive.Open(ctx, m.cfg.Archive) },
			Labels: m.cfg.archived, TTL: m.cfg.ArchiveTTL, InstanceID: now.InstanceID,
		}
	case now.Refused != "":
		// It is not known whether there is an archive, so finished workflows have to stay.
		a.target = &archive.Target{Open: func(context.Context) (*archive.DB, error) {
			return nil, errors.New("the configuration of workflows is not known: " + now.Refused)
		}}
	case now.Persistence != nil && now.Persistence.Archive:
		a.target = &archive.Target{
			Open:   func(ctx context.Context) (*archive.DB, error) { return m.openPersistence(ctx, now) },
			Labels: now.Persistence.Labels, TTL: now.Persistence.TTL, InstanceID: now.InstanceID,
		}
	}
	return a.target
}

// checkArchive opens the archive of the flag --archive once, because a mistake in a flag shows at the
// start.
func (m *Manager) checkArchive(ctx context.Context) error {
	if m.cfg.Archive == "" {
		return nil
	}
	if p := m.settings.Current().Persistence; p != nil && p.Archive {
		m.log.Warn("the flag --archive is set: persistence.archive of the configuration of workflows has no effect")
	}
	db, err := archive.Open(ctx, m.cfg.Archive)
	if err != nil {
		return err
	}
	return db.Close()
}

// openPersistence opens the archive of a configuration.
func (m *Manager) openPersistence(ctx context.Context, s *settings.Settings) (*archive.DB, error) {
	u, err := m.databaseURL(ctx, "persistence", &s.Persistence.Connection)
	if err != nil {
		return nil, err
	}
	return archive.Open(ctx, archiveSource(s.Persistence, s.InstanceID, u))
}

// nodeDatabase has nodes of large workflows, in the database of the configuration. It is open while it
// is used and until an error: the next use reads the credentials anew.
type nodeDatabase struct {
	m *Manager

	mu sync.Mutex
	of *settings.Persistence
	db *archive.DB
}

// nodesTimeout bounds one use of the database of nodes.
const nodesTimeout = 30 * time.Second

// with calls do with the database of the configuration in force.
func (n *nodeDatabase) with(ctx context.Context, do func(context.Context, *archive.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	s := n.m.settings.Current()
	switch {
	case s.Refused != "":
		return errors.New("the configuration of workflows is not known: " + s.Refused)
	case s.Persistence == nil || !s.Persistence.MoveNodes:
		return fmt.Errorf("the configuration of workflows names no database any more: %w", compress.ErrNoNodes)
	}
	db, err := n.open(ctx, s)
	if err != nil {
		return err
	}
	if err = do(ctx, db); err != nil && !errors.Is(err, compress.ErrNoNodes) {
		n.close(db)
	}
	return err
}

func (n *nodeDatabase) open(ctx context.Context, s *settings.Settings) (*archive.DB, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.db != nil && reflect.DeepEqual(n.of, s.Persistence) {
		return n.db, nil
	}
	db, err := n.m.openPersistence(ctx, s)
	if err != nil {
		return nil, err
	}
	if n.db != nil {
		err = n.db.Close()
	}
	n.of, n.db = s.Persistence, db
	return db, err
}

// close closes db unless that has been done; nil stands for any.
func (n *nodeDatabase) close(db *archive.DB) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.db == nil || db != nil && n.db != db {
		return
	}
	if err := n.db.Close(); err != nil {
		n.m.log.Warn("closing the database of nodes", "error", err)
	}
	n.of, n.db = nil, nil
}

// Read implements controller.NodeDatabase.
func (n *nodeDatabase) Read(ctx context.Context, uid, version string) (nodes wf.Nodes, err error) {
	err = n.with(ctx, func(ctx context.Context, db *archive.DB) (err error) {
		nodes, err = db.Nodes(ctx, uid, version)
		return err
	})
	return nodes, err
}

// Write implements controller.NodeDatabase.
func (n *nodeDatabase) Write(ctx context.Context, namespace, uid, version string, nodes []byte) error {
	return n.with(ctx, func(ctx context.Context, db *archive.DB) error {
		return db.PutNodes(ctx, namespace, archive.NodesRow{UID: uid, Version: version}, nodes)
	})
}

// Collect implements controller.NodeDatabase.
func (n *nodeDatabase) Collect(ctx context.Context, unused func(ctx context.Context, versions map[string][]string) (map[string][]string, error)) error {
	return n.with(ctx, func(ctx context.Context, db *archive.DB) error {
		rows, err := db.OldNodes(ctx)
		if err != nil || len(rows) == 0 {
			return err
		}
		versions := map[string][]string{}
		for _, r := range rows {
			versions[r.UID] = append(versions[r.UID], r.Version)
		}
		if versions, err = unused(ctx, versions); err != nil {
			return err
		}
		for uid, list := range versions {
			for _, version := range list {
				if err := db.RemoveNodes(ctx, archive.NodesRow{UID: uid, Version: version}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// archiveSource returns the source of a configuration's database for archive.Open, with the tables
// of one instance of the controller.
func archiveSource(p *settings.Persistence, instance string, u *url.URL) string {
	query := u.Query()
	query.Set("clustername", p.ClusterName)
	query.Set("instanceid", instance)
	query.Set("nodestable", p.NodesTable)
	query.Set("migrate", strconv.FormatBool(p.Migrate))
	u.RawQuery = query.Encode()
	return "argo+" + u.String()
}

// openLocks opens the database of locks of a configuration.
func (m *Manager) openLocks(ctx context.Context, s *settings.Synchronization) (controller.LockDatabase, error) {
	u, err := m.databaseURL(ctx, "synchronization", &s.Connection)
	if err != nil {
		return nil, err
	}
	return archive.OpenLocks(ctx, u.String(), archive.LockTables{
		Limit: s.LimitTable, State: s.StateTable, Controller: s.ControllerTable, Lock: s.LockTable, Migrate: s.Migrate,
		ControllerName: s.ControllerName, Inactive: s.Inactive,
	})
}

// databaseURL returns the URL of a database that a key of the configuration names, with the
// credentials in its Secrets.
func (m *Manager) databaseURL(ctx context.Context, of string, c *settings.Connection) (*url.URL, error) {
	namespace, _, _ := strings.Cut(m.cfg.WorkflowConfigMap, "/")
	client, err := kubeclient.Clientset(m.cfg.REST)
	if err != nil {
		return nil, err
	}
	read := func(key string, from corev1.SecretKeySelector) (string, error) {
		if from.Name == "" {
			return "", nil
		}
		secret, err := client.CoreV1().Secrets(namespace).Get(ctx, from.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("%s: %s: %w", of, key, err)
		}
		value, found := secret.Data[from.Key]
		if !found {
			return "", fmt.Errorf("%s: %s: the Secret %s/%s has no key %q", of, key, namespace, from.Name, from.Key)
		}
		return strings.TrimSpace(string(value)), nil
	}
	username, err := read("userNameSecret", c.Username)
	if err != nil {
		return nil, err
	}
	password, err := read("passwordSecret", c.Password)
	if err != nil {
		return nil, err
	}
	return connectionURL(c, username, password), nil
}

func connectionURL(c *settings.Connection, username, password string) *url.URL {
	query := url.Values{}
	for name, value := range c.Parameters {
		query.Set(name, value)
	}
	u := &url.URL{Scheme: c.Scheme, Host: c.Host, Path: "/" + c.Database, RawQuery: query.Encode()}
	if c.Port != 0 {
		u.Host = net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	}
	if username != "" {
		u.User = url.UserPassword(username, password)
	}
	return u
}
