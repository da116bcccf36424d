package applications

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/shard"
)

const (
	managersMax    = 9
	joinTimeout    = time.Minute
	leaseNamespace = "lockstep-system"
)

// shards deploys with one manager and then with several, and kills one of these.
func (t *trial) shards(ctx context.Context) error {
	//   1. One manager.
	if _, err := t.deploy(ctx, "1 manager"); err != nil {
		return err
	}
	if err := t.remove(ctx, "delete, 1 manager"); err != nil {
		return err
	}
	//   2. Several managers.
	others, err := t.join(ctx, t.cfg.Managers-1)
	defer func() {
		for _, m := range others {
			_ = m.Process.Kill()
			_ = m.Wait()
		}
	}()
	if err != nil {
		return err
	}
	together, err := t.deploy(ctx, fmt.Sprintf("%d managers", t.cfg.Managers))
	if err != nil {
		return err
	}
	//   3. Kill one manager, and change all applications: the others take over its share.
	after, err := t.update(ctx, "update, one killed", 1, func() error {
		last := others[len(others)-1]
		others = others[:len(others)-1]
		return errors.Join(last.Process.Kill(), ignoreExit(last.Wait()))
	})
	if err != nil {
		return err
	}
	t.run.TakeoverSeconds = after.Seconds
	//   4. Check that there were no refused and no repeated writes: there are some if two managers
	//      work on the same application.
	for _, p := range []*Phase{together, after} {
		t.run.Checked++
		if len(p.Refused) > 0 {
			t.run.Bad("%s: writes were refused: %v", p.Name, p.Refused)
		}
	}
	t.run.Checked++
	if most := float64(t.cfg.Shape.objects() + 3); together.WritesEach > most {
		t.run.Bad("%s: %.2f writes for each application, more than %.0f", together.Name, together.WritesEach, most)
	}
	return t.remove(ctx, fmt.Sprintf("delete, %d managers", t.cfg.Managers-1))
}

func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil // it was killed on purpose
	}
	return err
}

// join starts more managers and waits until all of them share the applications.
func (t *trial) join(ctx context.Context, more int) ([]*exec.Cmd, error) {
	t.Say("%d more managers", more)
	var out []*exec.Cmd
	for i := range more {
		log, err := os.Create(filepath.Join(t.cfg.OutDir, fmt.Sprintf("manager-%d.log", i+2)))
		if err != nil {
			return out, err
		}
		cmd := exec.Command(t.cfg.Lockstep, append([]string{"manager", "--kubeconfig=" + t.ManagerKubeconfig(),
			"--metrics-bind-address=", "--health-probe-bind-address="}, t.cfg.ManagerArgs...)...)
		cmd.Stdout, cmd.Stderr = log, log
		err = errors.Join(cmd.Start(), log.Close())
		if err != nil {
			return out, err
		}
		out = append(out, cmd)
	}
	client, err := kubernetes.NewForConfig(t.REST)
	if err != nil {
		return out, err
	}
	joined, err := t.Log.Until(ctx, joinTimeout, func() (bool, error) {
		leases, err := client.CoordinationV1().Leases(leaseNamespace).List(ctx, metav1.ListOptions{LabelSelector: shard.Label})
		return err == nil && len(leases.Items) == more+1, err
	})
	if err == nil && !joined {
		err = errors.New("managers have not joined; their logs are in the results")
	}
	if err != nil {
		return out, err
	}
	// The first manager releases applications only after the others have seen that it knows them.
	return out, errors.Join(t.Quiet(ctx), sleep(ctx, 2*shard.DefaultTimes.Period))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
