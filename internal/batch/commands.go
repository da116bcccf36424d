package batch

import (
	"context"
	"errors"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
)

// Commands carries out Command objects: each is deleted first, so that none is carried out twice, and then acted on.
type Commands struct {
	jobs   *Controller
	queues *Queues
	writer apiwriter.Writer
	log    *slog.Logger

	commands *cluster.Kind[*bus.Command]
	queue    workqueue.TypedInterface[types.NamespacedName]
}

// NewCommands registers its handler: call it before the informers are started.
func NewCommands(i *cluster.Informers, jobs *Controller, queues *Queues, w apiwriter.Writer, log *slog.Logger) (*Commands, error) {
	if i == nil || jobs == nil || queues == nil || w == nil {
		return nil, errors.New("batch: Commands needs Informers, jobs, queues and a Writer")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Commands{
		jobs: jobs, queues: queues, writer: w, log: log, commands: i.Commands, queue: workqueue.NewTyped[types.NamespacedName](),
	}
	i.Commands.Handle(cluster.Handler[*bus.Command]{Added: func(cmd *bus.Command) { c.queue.Add(cluster.KeyOf(cmd)) }})
	return c, nil
}

// Run works until ctx is done.
func (c *Commands) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for {
		key, done := c.queue.Get()
		if done {
			return
		}
		if cmd, ok := c.commands.Get(key.Namespace, key.Name); ok && cmd.DeletionTimestamp == nil {
			c.take(cmd)
		}
		c.queue.Done(key)
	}
}

func (c *Commands) take(cmd *bus.Command) {
	m := apiwriter.Meta{Owner: "command/" + cluster.KeyOf(cmd).String(), Reason: "command"}
	c.writer.Delete(m, cmd, apiwriter.DeleteOptions{}, func(err error) {
		if err != nil {
			c.log.Warn("deleting a command failed; it is not carried out", "command", cluster.KeyOf(cmd), "error", err)
			return
		}
		c.carryOut(cmd)
	})
}

func (c *Commands) carryOut(cmd *bus.Command) {
	target := cmd.TargetObject
	if target == nil {
		c.log.Warn("a command without a target was dropped", "command", cluster.KeyOf(cmd))
		return
	}
	switch cmd.Action {
	case bus.OpenQueueAction, bus.CloseQueueAction:
		c.queues.Do(target.Name, cmd.Action)
		return
	}
	key := types.NamespacedName{Namespace: cmd.Namespace, Name: target.Name}
	found := c.jobs.loop.Post(key, target.UID, func(r *record) {
		r.action = cmd.Action
	})
	if !found {
		c.log.Warn("a command for a job that does not exist was dropped", "command", cluster.KeyOf(cmd), "job", key)
	}
}

// refuseAction tells that a job's command could not be carried out.
func (c *Controller) refuseAction(r *record, action bus.Action, why string) {
	c.Writer.Event(r.job, corev1.EventTypeWarning, "CommandRefused", string(action)+": "+why)
}
