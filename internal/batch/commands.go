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
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

// Commands carries out Command objects. Each Command takes effect exactly once, even if the manager
// is killed in between:
//
//	hand over ─▶ target acts ─▶ its status is written with the Command's UID ─▶ delete the Command
//
// If a Command exists and its UID is in the status of its job, it has been carried out and only
// needs to be deleted. The state of a queue needs no such record: opening or closing a queue twice
// changes nothing. The Commands to one target are carried out in the order of their creation, each
// after the previous one is gone.
type Commands struct {
	jobs   *Controller
	queues *Queues
	writer apiwriter.Writer
	log    *slog.Logger
	clock  clock.Clock

	commands *informer.Informer[*bus.Command]
	loop     *controlloop.Loop[informer.CommandTarget, commandQueue]
}

// commandQueue is the state of the oldest Command to one target.
type commandQueue struct {
	uid      types.UID // of the Command
	since    time.Time // when it became the oldest
	handed   bool      // the target has the Command
	done     bool      // the target no longer needs the Command
	deleting bool
	failures controlloop.Backoff // backoff after a refused write that carries out or deletes the Command
}

const (
	// handRetry is the interval at which a Command whose target does not exist yet is retried.
	handRetry = 200 * time.Millisecond
	// targetWait is how long a Command waits for its target. A job and a Command created right
	// after it arrive through two different watches.
	targetWait = 10 * time.Second
)

// NewCommands returns a Commands and registers its handler. Call it before the informers start.
func NewCommands(i *informer.Set, jobs *Controller, queues *Queues, w apiwriter.Writer, log *slog.Logger) (*Commands, error) {
	if i == nil || jobs == nil || queues == nil || w == nil {
		return nil, errors.New("batch: Commands needs Informers, jobs, queues and a Writer")
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	c := &Commands{jobs: jobs, queues: queues, writer: w, log: log, clock: jobs.Clock, commands: i.Commands}
	c.loop = controlloop.New[informer.CommandTarget, commandQueue](controlloop.Config[informer.CommandTarget]{
		Name: "commands", Workers: 1, Turn: c.turn, Clock: jobs.Clock, Guard: jobs.Guard,
		Panicked: func(target informer.CommandTarget, p *panics.Panic) {
			if cmd := c.first(target); cmd != nil {
				i.Commands.SetApart(cmd.Namespace, cmd.Name, cmd.UID, p)
			}
		},
	})
	wake := func(cmd *bus.Command) { c.loop.Wake(informer.TargetOf(cmd)) }
	i.Commands.Follow(wake, wake)
	return c, nil
}

// Run runs the worker until ctx is done.
func (c *Commands) Run(ctx context.Context) { c.loop.Run(ctx) }

// turn advances the oldest Command to a target.
func (c *Commands) turn(target informer.CommandTarget) {
	cmd := c.first(target)
	if cmd == nil {
		c.loop.Drop(target)
		return
	}
	q := c.loop.Get(target)
	if q == nil {
		q = &commandQueue{}
		c.loop.Put(target, q)
	}
	if q.uid != cmd.UID {
		*q = commandQueue{uid: cmd.UID, since: c.clock.Now()}
	}
	c.loop.Deliver(target, cmd.UID)
	switch left := q.failures.Left(c.clock.Now()); {
	case q.deleting, q.handed && !q.done:
	case left > 0:
		c.loop.WakeAfter(target, left)
	case q.done:
		c.delete(target, q, cmd)
	default:
		c.handOver(target, q, cmd)
	}
}

// first returns the oldest Command to a target that is not being deleted, or nil.
func (c *Commands) first(target informer.CommandTarget) *bus.Command {
	var first *bus.Command
	for _, cmd := range c.commands.ByIndex(informer.CommandsByTarget, target.String()) {
		if cmd.DeletionTimestamp == nil && (first == nil || olderCommand(cmd, first)) {
			first = cmd
		}
	}
	return first
}

func olderCommand(a, b *bus.Command) bool {
	order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	return order < 0 || order == 0 && informer.Older(a.ResourceVersion, b.ResourceVersion)
}

// handOver passes a Command to its target.
func (c *Commands) handOver(target informer.CommandTarget, q *commandQueue, cmd *bus.Command) {
	switch {
	case cmd.TargetObject == nil || cmd.TargetObject.Name == "":
		c.refuse(target, q, cmd, "target: it names no object")
	case target.Queue:
		c.handToQueue(target, q, cmd)
	default:
		c.handToJob(target, q, cmd)
	}
}

func (c *Commands) handToQueue(target informer.CommandTarget, q *commandQueue, cmd *bus.Command) {
	if _, found := c.queues.Informers.Queues.Get("", target.Name); !found {
		c.await(target, q, cmd, fmt.Sprintf("target: there is no queue %q", target.Name))
		return
	}
	q.handed = c.queues.Do(target.Name, cmd.Action, func(err error) {
		c.loop.Post(target, cmd.UID, func(q *commandQueue) {
			if q.done = err == nil; err != nil {
				q.handed = false
				q.failures.Failed(c.clock.Now())
			}
		})
	})
	if !q.handed {
		c.loop.WakeAfter(target, handRetry) // the queue has just appeared
	}
}

func (c *Commands) handToJob(target informer.CommandTarget, q *commandQueue, cmd *bus.Command) {
	job, found := c.jobs.Informers.Jobs.Get(target.Namespace, target.Name)
	switch {
	case !found:
		c.await(target, q, cmd, fmt.Sprintf("target: there is no job %q", target.Name))
	case cmd.TargetObject.UID != "" && cmd.TargetObject.UID != job.UID:
		c.await(target, q, cmd, fmt.Sprintf("target: the job %q has UID %s, not %s", target.Name, job.UID, cmd.TargetObject.UID))
	case cmd.CreationTimestamp.Before(&job.CreationTimestamp):
		c.refuse(target, q, cmd, fmt.Sprintf("target: the job %q was created after the command", target.Name))
	case !c.jobs.ours(job):
		// Commands to a job of another scheduler belong to that scheduler.
	default:
		order := &pendingCommand{command: cmd, job: job.UID, ended: func(done bool) {
			c.loop.Post(target, cmd.UID, func(q *commandQueue) { q.handed, q.done = done, done })
		}}
		q.handed = c.jobs.loop.Post(informer.KeyOf(job), controlloop.Anyone, func(r *record) { c.jobs.takeOrder(r, order) })
		if !q.handed {
			c.loop.WakeAfter(target, handRetry) // the controller is about to load the job
		}
	}
}

// await retries a Command whose target is missing, and refuses it after targetWait.
func (c *Commands) await(target informer.CommandTarget, q *commandQueue, cmd *bus.Command, why string) {
	if c.clock.Since(q.since) < targetWait {
		c.loop.WakeAfter(target, handRetry)
		return
	}
	c.refuse(target, q, cmd, why)
}

// refuse deletes a Command that cannot be carried out, and records an event that says why.
func (c *Commands) refuse(target informer.CommandTarget, q *commandQueue, cmd *bus.Command, why string) {
	c.writer.Event(cmd, corev1.EventTypeWarning, eventRefused, string(cmd.Action)+": "+why)
	q.done = true
	c.delete(target, q, cmd)
}

// delete deletes a Command that was carried out or refused.
func (c *Commands) delete(target informer.CommandTarget, q *commandQueue, cmd *bus.Command) {
	q.deleting = true
	m := apiwriter.Meta{Owner: "command/" + informer.KeyOf(cmd).String(), Reason: "command"}
	c.writer.Delete(m, cmd, apiwriter.DeleteOptions{}, func(err error) {
		if err == nil || errors.Is(err, apiwriter.ErrStopped) {
			return // the watch will show the deletion
		}
		c.log.Warn("deleting a command failed", "command", informer.KeyOf(cmd), "error", err)
		c.loop.Post(target, cmd.UID, func(q *commandQueue) {
			q.deleting = false
			q.failures.Failed(c.clock.Now())
		})
	})
}

// pendingCommand is a Command that has been passed to its job.
type pendingCommand struct {
	command *bus.Command
	job     types.UID
	// acted means that the job carries out the action and its status must record the Command's UID.
	acted bool
	// ended is called once: with true when the Command is no longer needed, and with false when the
	// job is gone.
	ended func(done bool)
}

// eventRefused is the reason of events about Commands and policy actions that are not carried out.
const eventRefused = "CommandRefused"

// eventAction is the reason of events about actions of policies. The message begins with the action.
const eventAction = "ExecuteAction"

// takeOrder stores a Command in the record of its job.
func (c *Controller) takeOrder(r *record, o *pendingCommand) {
	if r.uid != o.job {
		o.ended(false)
		return
	}
	r.order = o
}

// ordered returns the action of the record's Command if it is still to be carried out, else "".
func (r *record) ordered() bus.Action {
	if r.order == nil || r.order.acted {
		return ""
	}
	return r.order.command.Action
}

// settleOrder ends a Command that was carried out before this manager started.
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

// obeyed applies the outcome of the Command for which the step was taken. If the step changes the
// job, the Command ends only after the status that records it has been written.
func (c *Controller) obeyed(r *record, action bus.Action, refused string, changes bool) {
	switch {
	case refused != "":
		c.refuseAction(r, action, refused)
		r.endOrder(true)
	case changes:
		r.order.acted = true
	default: // the job is already in the requested state
		r.endOrder(true)
	}
}

// orderWritten adds a Command that was carried out to the status, and returns the function to call
// when that status has been written. It returns nil if there is no such Command.
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

// refuseAction records an event that says why an action of a Command or policy is not carried out.
func (c *Controller) refuseAction(r *record, action bus.Action, why string) {
	c.Writer.Event(r.job, corev1.EventTypeWarning, eventRefused, string(action)+": "+why)
}
