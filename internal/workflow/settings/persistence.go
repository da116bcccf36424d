package settings

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Connection says how to connect to a database.
type Connection struct {
	// Scheme is postgres or mysql. Port is 0 for the usual port.
	Scheme, Host, Database string
	Port                   int
	// Username and Password are keys of Secrets in the namespace of the ConfigMap.
	Username, Password corev1.SecretKeySelector
	Parameters         map[string]string
}

// Persistence is the database in whose tables Argo's controller keeps finished workflows and the nodes
// of large ones.
type Persistence struct {
	Connection
	// Archive is true if finished workflows are archived there.
	Archive bool
	// NodesTable is the table for the nodes of large workflows, which is made with the others.
	// MoveNodes is true if workflows that would be too large have their nodes there.
	NodesTable  string
	MoveNodes   bool
	ClusterName string
	// Migrate is true if missing tables are created.
	Migrate bool
	// Labels selects the workflows that are archived; nil selects all. TTL is how long they are kept;
	// zero means for ever.
	Labels labels.Selector
	TTL    time.Duration
}

// ttl is a duration that may be in days or hours: 30d.
type ttl time.Duration

func (t *ttl) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == "" {
		return nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > maxDays {
			return fmt.Errorf("%q is no number of days", text)
		}
		*t = ttl(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%q is negative", text)
	}
	*t = ttl(d)
	return err
}

// maxDays is the largest number of days in a time.Duration.
const maxDays = 106_000

// database has the fields that both kinds of databases have.
type database struct {
	Host           string                   `json:"host,omitempty"`
	Port           int                      `json:"port,omitempty"`
	Database       string                   `json:"database,omitempty"`
	TableName      string                   `json:"tableName,omitempty"`
	UserNameSecret corev1.SecretKeySelector `json:"userNameSecret,omitempty"`
	PasswordSecret corev1.SecretKeySelector `json:"passwordSecret,omitempty"`
	AzureToken     *map[string]any          `json:"azureToken,omitempty"`
	AWSRDSToken    *map[string]any          `json:"awsRDSToken,omitempty"`
}

// databases are the fields of a key that names a database.
type databases struct {
	ConnectionPool    *map[string]any `json:"connectionPool,omitempty"`
	DBReconnectConfig *map[string]any `json:"dbReconnectConfig,omitempty"`
	SkipMigration     bool            `json:"skipMigration,omitempty"`
	PostgreSQL        *struct {
		database `json:",inline"`
		SSL      bool   `json:"ssl,omitempty"`
		SSLMode  string `json:"sslMode,omitempty"`
	} `json:"postgresql,omitempty"`
	MySQL *struct {
		database `json:",inline"`
		Options  map[string]string `json:"options,omitempty"`
	} `json:"mysql,omitempty"`
}

// persistence is the value of the key persistence.
type persistence struct {
	databases            `json:",inline"`
	NodeStatusOffLoad    bool                  `json:"nodeStatusOffLoad,omitempty"`
	Archive              bool                  `json:"archive,omitempty"`
	ArchiveLabelSelector *metav1.LabelSelector `json:"archiveLabelSelector,omitempty"`
	ArchiveTTL           *json.RawMessage      `json:"archiveTTL,omitempty"`
	ClusterName          string                `json:"clusterName,omitempty"`
}

// tableNames are the names that a table of nodes may have: they become part of SQL.
var tableNames = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,50}$`)

func (s *Settings) persistence(raw json.RawMessage) error {
	var c persistence
	if err := strictJSON(raw, &c); err != nil {
		return err
	}
	if !c.Archive && !c.NodeStatusOffLoad {
		return nil
	}
	connection, table, err := s.connection("persistence", &c.databases)
	if err != nil {
		return err
	}
	if connection == nil {
		return errors.New("archive and nodeStatusOffLoad need postgresql or mysql")
	}
	p := &Persistence{Connection: *connection, Archive: c.Archive, MoveNodes: c.NodeStatusOffLoad, ClusterName: cmp.Or(c.ClusterName, "default"), Migrate: !c.SkipMigration,
		NodesTable: cmp.Or(table, "argo_workflows")}
	if c.ArchiveTTL != nil {
		var t ttl
		if err := json.Unmarshal(*c.ArchiveTTL, &t); err != nil {
			return fmt.Errorf("archiveTTL: %w", err)
		}
		p.TTL = time.Duration(t)
	}
	if c.ArchiveLabelSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(c.ArchiveLabelSelector)
		if err != nil {
			return fmt.Errorf("archiveLabelSelector: %w", err)
		}
		p.Labels = selector
	}
	s.Persistence = p
	return nil
}

// connection returns the connection that a key names and the name of its table; nil if it names none.
func (s *Settings) connection(key string, c *databases) (*Connection, string, error) {
	if c.ConnectionPool != nil {
		s.ignore(key+".connectionPool", "the manager has at most 8 connections")
	}
	if c.DBReconnectConfig != nil {
		s.ignore(key+".dbReconnectConfig", "the manager tries again after errors for as long as it takes")
	}
	to := &Connection{}
	var d *database
	switch {
	case c.PostgreSQL != nil && c.MySQL != nil:
		return nil, "", errors.New("postgresql and mysql must not both be set")
	case c.PostgreSQL != nil:
		d, to.Scheme = &c.PostgreSQL.database, "postgres"
		mode := "prefer"
		if c.PostgreSQL.SSL {
			mode = cmp.Or(c.PostgreSQL.SSLMode, "require")
		}
		to.Parameters = map[string]string{"sslmode": mode}
	case c.MySQL != nil:
		d, to.Scheme, to.Parameters = &c.MySQL.database, "mysql", c.MySQL.Options
	default:
		return nil, "", nil
	}
	to.Host, to.Port, to.Database, to.Username, to.Password = d.Host, d.Port, d.Database, d.UserNameSecret, d.PasswordSecret
	return to, d.TableName, d.check()
}

func (d *database) check() error {
	switch {
	case d.AzureToken != nil || d.AWSRDSToken != nil:
		return errors.New("azureToken, awsRDSToken: tokens of cloud providers are not supported: use userNameSecret and passwordSecret")
	case d.Host == "" || d.Database == "":
		return errors.New("host and database are required")
	case d.TableName != "" && !tableNames.MatchString(d.TableName):
		return fmt.Errorf("tableName: %q is no name of a table", d.TableName)
	}
	return nil
}

// strictJSON decodes an object in which every field must be known.
func strictJSON(raw json.RawMessage, into any) error {
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}
