package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/keyed"
)

// Commands carries out Command objects, each in effect once, whenever the manager ends:
//
//	hand over ──▶ the target acts ──▶ its status, with the Command's UID, is written ──▶ delete the Command
//
// A Command that exists and whose UID its job's status has was carried out, and is deleted only. The state of a queue needs no
// such record: opening or closing it twice changes nothing. The Commands to one target are carried out in the order in which
// they were created, the next when the one before is gone.
type Commands struct {
	jobs   *Controller
	queues *Queues
	writer apiwriter.Writer
	log    *slog.Logger
	clock  clock.Clock

	commands *cluster.Kind[*bus.Command]
	lanes    *keyed.Loop[cluster.CommandTarget, lane]
}

// lane is the first of the Commands to one target.
type lane struct {
	uid      types.UID // of the Command
	since    time.Time // when it became the first
	handed   bool      // the target has it
	done     bool      // it needs the Command no more
	deleting bool
	refusals keyed.Pause // of writes that carry it out, or delete it
}

const (
	// handRetry is how soon a Command is looked at again whose target is not there yet.
	handRetry = 200 * time.Millisecond
	// targetWait is how long a Command waits for its target: a job and a Command made right after it are seen by two watches.
	targetWait = 10 * time.Second
)

// NewCommands registers its handler: call it before the informers are started.
func NewCommands(i *cluster.Informers, jobs *Controller, queues *Queues, w apiwriter.Writer, log *slog.Logger) (*Commands, error) {
	if i == nil || jobs == nil || queues == nil || w == nil {
		return nil, errors.New("batch: Commands needs Informers, jobs, queues and a Writer")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Commands{jobs: jobs, queues: queues, writer: w, log: log, clock: jobs.Clock, commands: i.Commands}
	c.lanes = keyed.New[cluster.CommandTarget, lane](keyed.Config[cluster.CommandTarget]{
		Name: "commands", Workers: 1, Turn: c.turn, Clock: jobs.Clock, Guard: jobs.Guard,
		Panicked: func(target cluster.CommandTarget, p *contain.Panic) {
			if cmd := c.first(target); cmd != nil {
				i.Commands.SetApart(cmd.Namespace, cmd.Name, cmd.UID, p)
			}
		},
	})
	wake := func(cmd *bus.Command) { c.lanes.Wake(cluster.TargetOf(cmd)) }
	i.Commands.Follow(wake, wake)
	return c, nil
}

// Run works until ctx is done.
func (c *Commands) Run(ctx context.Context) { c.lanes.Run(ctx) }

// turn brings the first Command to a target forward.
func (c *Commands) turn(target cluster.CommandTarget) {
	cmd := c.first(target)
	if cmd == nil {
		c.lanes.Drop(target)
		return
	}
	l := c.lanes.Get(target)
	if l == nil {
		l = &lane{}
		c.lanes.Put(target, l)
	}
	if l.uid != cmd.UID {
		*l = lane{uid: cmd.UID, since: c.clock.Now()}
	}
	c.lanes.Deliver(target, cmd.UID)
	switch left := l.refusals.Left(c.clock.Now()); {
	case l.deleting, l.handed && !l.done:
	case left > 0:
		c.lanes.WakeAfter(target, left)
	case l.done:
		c.delete(target, l, cmd)
	default:
		c.handOver(target, l, cmd)
	}
}

// first is the Command to a target that was created first, of those that are not being deleted.
func (c *Commands) first(target cluster.CommandTarget) *bus.Command {
	var first *bus.Command
	for _, cmd := range c.commands.ByIndex(cluster.CommandsByTarget, target.String()) {
		if cmd.DeletionTimestamp == nil && (first == nil || beforeCommand(cmd, first) < 0) {
			first = cmd
		}
	}
	return first
}

func beforeCommand(a, b *bus.Command) int {
	return cmp.Or(a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time), len(a.ResourceVersion)-len(b.ResourceVersion),
		cmp.Compare(a.ResourceVersion, b.ResourceVersion))
}

// handOver gives a Command to its target.
func (c *Commands) handOver(target cluster.CommandTarget, l *lane, cmd *bus.Command) {
	switch {
	case cmd.TargetObject == nil || cmd.TargetObject.Name == "":
		c.refuse(target, l, cmd, "target: it names no object")
	case target.Queue:
		c.handToQueue(target, l, cmd)
	default:
		c.handToJob(target, l, cmd)
	}
}

func (c *Commands) handToQueue(target cluster.CommandTarget, l *lane, cmd *bus.Command) {
	if _, found := c.queues.Informers.Queues.Get("", target.Name); !found {
		c.await(target, l, cmd, fmt.Sprintf("target: there is no queue %q", target.Name))
		return
	}
	l.handed = true
	c.queues.Do(target.Name, cmd.Action, func(err error) {
		c.lanes.Post(target, cmd.UID, func(l *lane) {
			if l.done = err == nil; err != nil {
				l.handed = false
				l.refusals.Refused(c.clock.Now())
			}
		})
	})
}

func (c *Commands) handToJob(target cluster.CommandTarget, l *lane, cmd *bus.Command) {
	job, found := c.jobs.Informers.Jobs.Get(target.Namespace, target.Name)
	switch {
	case !found:
		c.await(target, l, cmd, fmt.Sprintf("target: there is no job %q", target.Name))
	case cmd.TargetObject.UID != "" && cmd.TargetObject.UID != job.UID:
		c.await(target, l, cmd, fmt.Sprintf("target: the job %q has UID %s, not %s", target.Name, job.UID, cmd.TargetObject.UID))
	case cmd.CreationTimestamp.Before(&job.CreationTimestamp):
		c.refuse(target, l, cmd, fmt.Sprintf("target: the job %q was created after the command", target.Name))
	case !c.jobs.ours(job):
		// Its Commands are for the scheduler that it names.
	default:
		order := &order{command: cmd, job: job.UID, ended: func(done bool) {
			c.lanes.Post(target, cmd.UID, func(l *lane) { l.handed, l.done = done, done })
		}}
		l.handed = c.jobs.loop.Post(cluster.KeyOf(job), keyed.Anyone, func(r *record) { c.jobs.takeOrder(r, order) })
		if !l.handed {
			c.lanes.WakeAfter(target, handRetry) // the job is about to be taken up
		}
	}
}

// await leaves a Command for a while whose target is missing, and refuses it then.
func (c *Commands) await(target cluster.CommandTarget, l *lane, cmd *bus.Command, why string) {
	if c.clock.Since(l.since) < targetWait {
		c.lanes.WakeAfter(target, handRetry)
		return
	}
	c.refuse(target, l, cmd, why)
}

// refuse deletes a Command that nobody can carry out, and tells why.
func (c *Commands) refuse(target cluster.CommandTarget, l *lane, cmd *bus.Command, why string) {
	c.writer.Event(cmd, corev1.EventTypeWarning, eventRefused, string(cmd.Action)+": "+why)
	l.done = true
	c.delete(target, l, cmd)
}

// delete deletes a Command that was carried out, or refused.
func (c *Commands) delete(target cluster.CommandTarget, l *lane, cmd *bus.Command) {
	l.deleting = true
	m := apiwriter.Meta{Owner: "command/" + cluster.KeyOf(cmd).String(), Reason: "command"}
	c.writer.Delete(m, cmd, apiwriter.DeleteOptions{}, func(err error) {
		if err == nil || errors.Is(err, apiwriter.ErrStopped) {
			return // the watch will show it
		}
		c.log.Warn("deleting a command failed", "command", cluster.KeyOf(cmd), "error", err)
		c.lanes.Post(target, cmd.UID, func(l *lane) {
			l.deleting = false
			l.refusals.Refused(c.clock.Now())
		})
	})
}

// order is a Command that its job has.
type order struct {
	command *bus.Command
	job     types.UID
	// acted says that the job does what was asked, and that its status is to say so.
	acted bool
	// ended is called once: with true when the Command is needed no more, and with false when the job is gone.
	ended func(done bool)
}

// eventRefused is the reason of events about Commands that are not carried out.
const eventRefused = "CommandRefused"

// takeOrder takes in a Command.
func (c *Controller) takeOrder(r *record, o *order) {
	if r.uid != o.job {
		o.ended(false)
		return
	}
	r.order = o
}

// ordered is the action that a Command asks for, if it is still to be carried out.
func (r *record) ordered() bus.Action {
	if r.order == nil || r.order.acted {
		return ""
	}
	return r.order.command.Action
}

// settleOrder ends a Command that was carried out before this manager began.
func (r *record) settleOrder() {
	if r.order != nil && !r.order.acted && r.status.LastCommand == r.order.command.UID {
		r.endOrder(true)
	}
}

func (r *record) endOrder(done bool) {
	if o := r.order; o != nil {
		r.order = nil
		o.ended(done)
	}
}

// obeyed takes in what became of the Command that the step was about. Where the job's status says so, it is written first.
func (c *Controller) obeyed(r *record, action bus.Action, refused string, changes bool) {
	switch {
	case refused != "":
		c.refuseAction(r, action, refused)
		r.endOrder(true)
	case changes:
		r.order.acted = true
	default: // the job does it already
		r.endOrder(true)
	}
}

// orderWritten returns what to do when the status is written that says that a Command was carried out, or nil.
func (c *Controller) orderWritten(r *record, s *api.JobStatus) func(*record) {
	o := r.order
	if o == nil || !o.acted {
		return nil
	}
	s.LastCommand = o.command.UID
	return func(r *record) {
		if r.order == o {
			r.endOrder(true)
		}
	}
}

// refuseAction tells that what a Command or a policy asks for cannot be done.
func (c *Controller) refuseAction(r *record, action bus.Action, why string) {
	c.Writer.Event(r.job, corev1.EventTypeWarning, eventRefused, string(action)+": "+why)
}
