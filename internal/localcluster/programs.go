package localcluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"
)

// ProgramsUser is the user name of Programs at the API server: that of a service account with all
// rights, so that the server's flow control treats it as it treats controllers in a real cluster.
const ProgramsUser = "system:serviceaccount:lockstep-programs:default"

// Program is a further program of the cluster, for example a controller under test. It starts after
// Config.Install.
type Program struct {
	Name Component
	// Command is the program and its arguments; Env are variables in addition to the environment of
	// this process, as NAME=value. Expand says which variables both may use.
	Command, Env []string
	// Dir is the working directory.
	Dir string
	// Ports are names of further ports.
	Ports []string
	// The program is ready once ReadyURL answers with 200 and its log has a line that matches
	// ReadyLog. Of these, nil and empty count as true.
	ReadyURL string
	ReadyLog *regexp.Regexp
	// MetricsURL has the program's metrics in Prometheus' text format; empty if it has none.
	MetricsURL string
}

// Variables returns the names of the variables that a program may use: KUBECONFIG is the path of its
// kubeconfig, PORT a free port, and PORT_x a free port for each x of Ports.
func (p *Program) Variables() []string {
	names := []string{"KUBECONFIG", "PORT"}
	for _, port := range p.Ports {
		names = append(names, "PORT_"+port)
	}
	return names
}

// Expand replaces each ${NAME} in a text by its value. $ alone stays.
func Expand(text string, value func(name string) string) string {
	return variable.ReplaceAllStringFunc(text, func(v string) string { return value(v[2 : len(v)-1]) })
}

var variable = regexp.MustCompile(`\$\{[^{}]*\}`)

// portOf returns the key under which the port of a program is leased.
func (p *Program) portOf(port string) Component { return p.Name + "/" + Component(port) }

func (c *Config) program(name Component) *Program {
	i := slices.IndexFunc(c.Programs, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Programs[i]
}

func (c *Config) validatePrograms() error {
	for i := range c.Programs {
		p := &c.Programs[i]
		if p.Name == "" || len(p.Command) == 0 {
			return fmt.Errorf("localcluster: a program needs a name and a command")
		}
		if n := len(slices.DeleteFunc(c.components(), func(other Component) bool { return other != p.Name })); n > 1 {
			return fmt.Errorf("localcluster: %d components are named %s", n, p.Name)
		}
	}
	return nil
}

// leasePrograms leases the additional ports of the programs.
func (c *Cluster) leasePrograms() (err error) {
	for i := range c.config.Programs {
		p := &c.config.Programs[i]
		for _, port := range p.Ports {
			if c.ports[p.portOf(port)], err = leasePort(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) expand(p *Program, text string) string {
	return Expand(text, func(name string) string {
		switch port, ok := strings.CutPrefix(name, "PORT_"); {
		case name == "KUBECONFIG":
			return c.files.kubeconfig("programs")
		case name == "PORT":
			return strconv.Itoa(c.ports[p.Name].port)
		case ok && slices.Contains(p.Ports, port):
			return strconv.Itoa(c.ports[p.portOf(port)].port)
		}
		return "${" + name + "}"
	})
}

// programCommand returns the command that runs a program.
func (c *Cluster) programCommand(p *Program) command {
	cmd := command{path: p.Command[0], dir: p.Dir, log: c.files.log(p.Name), env: os.Environ()}
	for _, arg := range p.Command[1:] {
		cmd.args = append(cmd.args, c.expand(p, arg))
	}
	for _, setting := range p.Env {
		cmd.env = append(cmd.env, c.expand(p, setting))
	}
	return cmd
}

// programReady returns nil if a running program is ready.
func (c *Cluster) programReady(ctx context.Context, p *Program) error {
	if p.ReadyLog != nil {
		log, err := os.ReadFile(c.files.log(p.Name))
		if err != nil {
			return err
		}
		if !p.ReadyLog.Match(log) {
			return fmt.Errorf("no line of the log matches %q", p.ReadyLog)
		}
	}
	if p.ReadyURL == "" {
		return nil
	}
	return c.probe.get(ctx, c.expand(p, p.ReadyURL), "")
}

// applyProgramsRole allows the programs everything: what they need is not known.
func applyProgramsRole(ctx context.Context, client kubernetes.Interface) error {
	return applyRole(ctx, client, ProgramsUser, []rbacv1.PolicyRule{
		{APIGroups: []string{rbacv1.APIGroupAll}, Resources: []string{rbacv1.ResourceAll}, Verbs: []string{rbacv1.VerbAll}},
		{NonResourceURLs: []string{rbacv1.NonResourceAll}, Verbs: []string{rbacv1.VerbAll}},
	})
}
