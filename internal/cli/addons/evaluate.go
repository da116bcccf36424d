package addons

import (
	"context"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

// evaluate calls do with a Run that evaluates addons in child processes with limits, because addons may
// be anyone's.
func evaluate(ctx context.Context, do func(render.Run) error) error {
	pool, err := sandbox.New(sandbox.Config{Limits: sandbox.Limits{MemoryBytes: 512 << 20, CPU: 30 * time.Second, Wall: time.Minute}})
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(func(evaluator string, request []byte) ([]byte, error) {
		return pool.Do(ctx, "addon", evaluator, request)
	})
}

// listedMax bounds the names in a message.
const listedMax = 5

func listed(names []string) string {
	if len(names) > listedMax {
		names = append(names[:listedMax:listedMax], "others")
	}
	return strings.Join(names, ", ")
}
