package apply

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Target is the wanted state of a pod's cgroups.
type Target struct {
	Pod cgroup.Pod
	// CPUs are for the pod's own cgroup; they include those of its leaves. Leaves that appear later
	// get them too.
	CPUs cpuset.Set
	// Leaves are in the order of Pod.Leaves.
	Leaves []Leaf
	// Pool is where the containers go if the pod cannot be brought to its wanted state and they run
	// on CPUs that are not theirs; such CPUs may be exclusive to another pod. An empty Pool means
	// that they stay where they are.
	Pool cpuset.Set
	// OnlyPool means that the wanted state is not tried now, because it has failed before.
	OnlyPool bool
}

// Leaf is the wanted state of a container's cgroup.
type Leaf struct {
	CPUs cpuset.Set
	// Mems are memory nodes to bind to; nil leaves them unchanged.
	Mems *cpuset.Set
	// Own means that the set is written to the leaf itself. Other leaves may inherit it from the
	// pod's cgroup, if the kernel supports that.
	Own bool
	// Keep means that the leaf is not changed, because the kubelet writes it.
	Keep bool
}

// Report is the result of Apply.
type Report struct {
	// Writes is the number of writes to the kernel's files, including those that were refused or
	// rolled back.
	Writes int
	// Changed are the paths of the leaves whose CPUs have changed.
	Changed []string
	// Failures are the failed pods, in the order of the attempts.
	Failures []Failure
}

// Failure is a pod that could not be brought to its wanted state.
type Failure struct {
	UID string
	// Path is the cgroup in which the error occurred.
	Path string
	Err  error
	// Safe means that all containers of the pod run on CPUs that are theirs or the pool's.
	Safe bool
}

// Applier writes CPU sets.
type Applier struct {
	Sets cgroup.Sets
	// Contain runs the work on one pod, and turns a panic in it into an error; with nil, panics
	// propagate. A panic may leave the pod half-way: the next Apply continues from the state of the
	// files.
	Contain func(pod cgroup.Pod, do func() error) error
}

func (a Applier) contain(pod cgroup.Pod, do func() error) error {
	if a.Contain == nil {
		return do()
	}
	return a.Contain(pod, do)
}

// relistMax bounds how often a pod is listed again because a container appeared in it.
const relistMax = 3

// Apply brings all targets to their wanted state. It continues after a pod has failed.
func (a Applier) Apply(targets []Target) Report {
	w := &work{sets: a.Sets}
	// 1. Find the pods that differ.
	var pods []*podChange
	for _, t := range targets {
		var p *podChange
		err := a.contain(t.Pod, func() (err error) {
			if t.OnlyPool {
				if t, _, err = w.pooled(t); err != nil {
					return err
				}
			}
			p, err = w.compare(t)
			return err
		})
		if err != nil {
			w.fail(t.Pod, err)
		} else if p != nil {
			pods = append(pods, p)
		}
	}
	// 2. Change pods that give CPUs up before pods that take them.
	for _, i := range order(len(pods), func(i int) change { return pods[i].change }) {
		p := pods[i]
		err := a.contain(p.Pod, func() error {
			// 3. Change the pod in one transaction.
			err := w.transaction(p)
			// 4. Check the result.
			if err == nil {
				err = w.verify(p)
			}
			// 5. Put it into the pool if it would run on CPUs of others.
			if err != nil && !p.OnlyPool {
				err = w.toPool(p.Target, err)
			}
			return err
		})
		if err != nil {
			w.fail(p.Pod, err)
		}
	}
	return w.report
}

// Differ returns the paths of the leaves whose CPUs Apply would change. It writes nothing.
func (a Applier) Differ(targets []Target) []string {
	w := &work{sets: a.Sets}
	var out []string
	for _, t := range targets {
		for i, leaf := range t.Leaves {
			cpus, err := w.sets.CPUs(t.Pod.Leaves[i].Path)
			if err == nil && !leaf.Keep && !cpus.Equal(leaf.CPUs) {
				out = append(out, t.Pod.Leaves[i].Path)
			}
		}
	}
	return out
}

// work is the state of one Apply.
type work struct {
	sets   cgroup.Sets
	report Report
	undo   []undo // of the current transaction
}

// undo is a call that takes a write back.
type undo struct {
	dir  string
	call func() error
}

// podChange is a pod that is not in its wanted state.
type podChange struct {
	Target
	change
	cpus cpuset.Set // present CPUs of the pod's cgroup
	has  []leafHas
}

// leafHas is the present state of a leaf.
type leafHas struct {
	change
	cpus cpuset.Set
	gone bool
	same bool // in its wanted state
}

func (w *work) fail(pod cgroup.Pod, err error) {
	f := Failure{UID: pod.UID, Path: pod.Path, Err: err}
	var at *atError
	if errors.As(err, &at) {
		f.Path = at.dir
	}
	var safe *safeError
	f.Safe = errors.As(err, &safe)
	w.report.Failures = append(w.report.Failures, f)
}

// atError is an error with the cgroup in which it occurred, and an explanation.
type atError struct {
	dir string
	err error
}

func (e *atError) Error() string { return fmt.Sprintf("cgroup /%s: %s", e.dir, explain(e.err)) }
func (e *atError) Unwrap() error { return e.err }

// safeError is the error of a failed pod whose containers run on CPUs that are theirs or the pool's.
type safeError struct {
	pool cpuset.Set // where some of them went because of the error
	err  error
}

func (e *safeError) Error() string {
	if e.pool.IsEmpty() {
		return e.err.Error()
	}
	return fmt.Sprintf("%v; it runs on the shared pool, CPUs %s", e.err, e.pool)
}
func (e *safeError) Unwrap() error { return e.err }

// toPool moves the containers of a failed pod that run on CPUs which are neither theirs nor the
// pool's to the pool, and returns err with the result.
func (w *work) toPool(t Target, err error) error {
	if t.Pool.IsEmpty() {
		return err
	}
	pool, needed, readErr := w.pooled(t)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if !needed {
		return &safeError{err: err}
	}
	p, poolErr := w.compare(pool)
	if poolErr == nil && p != nil {
		if poolErr = w.transaction(p); poolErr == nil {
			poolErr = w.verify(p)
		}
	}
	if poolErr != nil {
		return errors.Join(err, fmt.Errorf("putting it into the shared pool: %w", poolErr))
	}
	return &safeError{t.Pool, err}
}

// pooled returns the target of a pod that stays as it is, as far as its containers run on CPUs that
// are theirs or the pool's, and has the pool otherwise. needed reports whether one has the pool.
func (w *work) pooled(t Target) (out Target, needed bool, err error) {
	out = Target{Pod: t.Pod, Leaves: make([]Leaf, len(t.Leaves)), OnlyPool: true}
	for i, leaf := range t.Leaves {
		has, err := w.sets.CPUs(t.Pod.Leaves[i].Path)
		if err != nil && !cgroup.Gone(err) {
			return out, false, &atError{t.Pod.Leaves[i].Path, err}
		}
		switch {
		case leaf.Keep || err != nil:
			out.Leaves[i] = leaf
		case has.IsEmpty() || !has.SubsetOf(leaf.CPUs.Union(t.Pool)):
			out.Leaves[i], needed = Leaf{CPUs: t.Pool, Own: true}, true
		default:
			out.Leaves[i] = Leaf{CPUs: has, Own: leaf.Own}
		}
		if err == nil {
			out.CPUs = out.CPUs.Union(out.Leaves[i].CPUs)
		}
	}
	if out.CPUs.IsEmpty() {
		out.CPUs = t.Pool
	}
	return out, needed, nil
}

// explain returns a description of a kernel error.
func explain(err error) string {
	for errno, text := range map[unix.Errno]string{
		unix.EACCES: "the CPUs or memory nodes are not among those of the cgroup above it",
		unix.EBUSY:  "a cgroup below it, or a deadline-scheduled process in it, needs what would be taken away",
		unix.EINVAL: "a CPU is off line, or a sibling has it marked cpu_exclusive",
		unix.ENOSPC: "it has processes and would have no CPU or memory node left",
		unix.ERANGE: "there is no such CPU",
		unix.EROFS:  "the cgroup file system is mounted read-only here",
		unix.EPERM:  "the agent may not write cgroups",
	} {
		if errors.Is(err, errno) {
			return fmt.Sprintf("%s (%v)", text, err)
		}
	}
	return err.Error()
}

// compare reads the present state of a pod. It returns nil if the pod is in its wanted state, or
// gone.
func (w *work) compare(t Target) (*podChange, error) {
	p := &podChange{Target: t, has: make([]leafHas, len(t.Leaves))}
	if err := w.sets.Enable(t.Pod.Path); err != nil {
		return nil, w.unlessGone(t.Pod.Path, err)
	}
	var err error
	if p.cpus, err = w.sets.CPUs(t.Pod.Path); err != nil {
		return nil, w.unlessGone(t.Pod.Path, err)
	}
	same := true
	for i, leaf := range t.Leaves {
		has, err := w.leafHas(t.Pod.Leaves[i].Path, leaf)
		if err != nil {
			return nil, err
		}
		p.has[i] = has
		if leaf.Keep && !has.gone {
			// The CPUs of a kept leaf must be among those of the pod.
			p.CPUs = p.CPUs.Union(has.cpus)
		}
		same = same && has.same
		p.take, p.give = p.take.Union(has.take), p.give.Union(has.give)
	}
	if same && p.cpus.Equal(p.CPUs) {
		return nil, nil
	}
	return p, nil
}

func (w *work) unlessGone(dir string, err error) error {
	var at *atError
	switch {
	case cgroup.Gone(err):
		return nil
	case errors.As(err, &at):
		return err
	}
	return &atError{dir, err}
}

func (w *work) leafHas(dir string, want Leaf) (h leafHas, err error) {
	if err := w.sets.Enable(dir); err != nil {
		return leafHas{gone: true, same: true}, w.unlessGone(dir, err)
	}
	if h.cpus, err = w.sets.CPUs(dir); err != nil {
		return leafHas{gone: true, same: true}, w.unlessGone(dir, err)
	}
	if want.Keep {
		h.same = true
		return h, nil
	}
	h.take, h.give = want.CPUs.Minus(h.cpus), h.cpus.Minus(want.CPUs)
	h.same = h.take.IsEmpty() && h.give.IsEmpty()
	if h.same && want.Own && w.sets.Version == cgroup.V2 {
		wish, err := w.sets.Wish(dir)
		if err != nil {
			return leafHas{gone: true, same: true}, w.unlessGone(dir, err)
		}
		h.same = wish.Equal(want.CPUs)
	}
	if h.same && want.Mems != nil {
		mems, err := w.sets.Mems(dir)
		if err != nil {
			return leafHas{gone: true, same: true}, w.unlessGone(dir, err)
		}
		h.same = mems.Equal(*want.Mems)
	}
	return h, nil
}

// transaction brings a pod to its wanted state, or leaves it as it was.
func (w *work) transaction(p *podChange) error {
	w.undo = w.undo[:0]
	changed := len(w.report.Changed)
	err := w.pod(p)
	if err == nil || cgroup.Gone(err) {
		return nil
	}
	w.report.Changed = w.report.Changed[:changed]
	for i := len(w.undo) - 1; i >= 0; i-- {
		u := w.undo[i]
		w.report.Writes++
		if undoErr := u.call(); undoErr != nil && !cgroup.Gone(undoErr) {
			err = errors.Join(err, fmt.Errorf("taking it back: %w", &atError{u.dir, undoErr}))
		}
	}
	return err
}

func (w *work) pod(p *podChange) error {
	dir := p.Pod.Path
	// 1. Above: only the cgroup of the pod's class is widened, within the limits of the kubelet's
	// own cgroup.
	if p.Pod.Class != "" {
		if err := w.ensureClass(p.Pod.Class, p.CPUs); err != nil {
			return err
		}
	}
	// 2. Downwards: widen the pod's cgroup as far as its containers need.
	need := p.CPUs
	for i, leaf := range p.Leaves {
		if !leaf.Keep && !p.has[i].gone {
			need = need.Union(leaf.CPUs)
		}
	}
	cpus := p.cpus
	if !need.SubsetOf(cpus) {
		cpus = cpus.Union(need)
		if err := w.setCPUs(dir, cpus); err != nil {
			return err
		}
	}
	// 3. Containers: those that give CPUs up go before those that take them.
	for _, i := range order(len(p.Leaves), func(i int) change { return p.has[i].change }) {
		if err := w.leaf(p, i); err != nil {
			return err
		}
	}
	// 4. Upwards: narrow the pod's cgroup to its wanted state.
	return w.narrow(p, cpus)
}

// narrow narrows a pod's cgroup to its wanted CPUs. In version 1, a container that has appeared
// meanwhile with all CPUs of the cgroup prevents that, so its cgroup is narrowed first.
func (w *work) narrow(p *podChange, cpus cpuset.Set) error {
	if cpus.Equal(p.CPUs) {
		return nil
	}
	for try := 0; ; try++ {
		err := w.setCPUs(p.Pod.Path, p.CPUs)
		if !errors.Is(err, unix.EBUSY) || try == relistMax {
			return err
		}
		leaves, listErr := cgroup.Leaves(w.sets.Files, p.Pod.Path)
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		for _, l := range leaves {
			has, readErr := w.sets.CPUs(l.Path)
			if cgroup.Gone(readErr) || readErr == nil && has.SubsetOf(p.CPUs) {
				continue
			}
			if readErr != nil {
				return &atError{l.Path, readErr}
			}
			if err := w.set(l.Path, has, p.CPUs); err != nil {
				return err
			}
		}
	}
}

// ensureClass widens the cgroup of a class of pods if CPUs that one of its pods needs are missing
// there. In version 1, a CPU that was offline for a while is missing.
func (w *work) ensureClass(class string, cpus cpuset.Set) error {
	if w.sets.Version != cgroup.V1 {
		return nil
	}
	has, err := w.sets.CPUs(class)
	if err != nil || cpus.SubsetOf(has) {
		return err
	}
	above, err := w.sets.CPUs(path.Dir(class))
	if err != nil || !cpus.SubsetOf(above) {
		return err // the kernel will refuse the write, which is reported for the pod
	}
	return w.setCPUs(class, has.Union(cpus))
}

// leaf brings a container's cgroup to its wanted state.
func (w *work) leaf(p *podChange, i int) error {
	dir, want, has := p.Pod.Leaves[i].Path, p.Leaves[i], p.has[i]
	if has.gone || has.same || want.Keep {
		return nil
	}
	if !w.inherits(p, i) {
		if err := w.set(dir, has.cpus, want.CPUs); err != nil {
			return w.unlessGone(dir, err)
		}
	}
	if !has.take.IsEmpty() || !has.give.IsEmpty() {
		w.report.Changed = append(w.report.Changed, dir)
	}
	if want.Mems == nil {
		return nil
	}
	mems, err := w.sets.Mems(dir)
	if err == nil && !mems.Equal(*want.Mems) {
		err = w.setMems(dir, *want.Mems)
	}
	if err != nil {
		return w.unlessGone(dir, err)
	}
	return nil
}

// inherits reports whether a container gets its wanted CPUs from the pod's cgroup without a write.
func (w *work) inherits(p *podChange, i int) bool {
	if w.sets.Version != cgroup.V2 || p.Leaves[i].Own || !p.Leaves[i].CPUs.Equal(p.CPUs) {
		return false
	}
	wish, err := w.sets.Wish(p.Pod.Leaves[i].Path)
	return err == nil && wish.IsEmpty()
}

// set changes a cgroup's CPUs from has to want. In version 1, cgroups that the container has
// created inside its own prevent narrowing and do not follow widening, so they are changed too. A
// nested cgroup that had all of the container's CPUs gets all again; others keep those of their
// CPUs that remain.
func (w *work) set(dir string, has, want cpuset.Set) error {
	if w.sets.Version != cgroup.V1 {
		return w.setCPUs(dir, want)
	}
	children, err := w.sets.Files.List(dir)
	if err != nil {
		return &atError{dir, err}
	}
	if len(children) == 0 {
		return w.setCPUs(dir, want)
	}
	wide := has.Union(want)
	if !wide.Equal(has) {
		if err := w.setCPUs(dir, wide); err != nil {
			return err
		}
	}
	for _, name := range children {
		child := path.Join(dir, name)
		its, err := w.sets.CPUs(child)
		if cgroup.Gone(err) {
			continue
		}
		if err != nil {
			return &atError{child, err}
		}
		left := its.Intersect(want)
		if its.Equal(has) || left.IsEmpty() && !its.IsEmpty() {
			left = want
		}
		if left.Equal(its) {
			continue
		}
		if err := w.set(child, its, left); err != nil && !cgroup.Gone(err) {
			return err
		}
	}
	if wide.Equal(want) {
		return nil
	}
	return w.setCPUs(dir, want)
}

// setCPUs writes one file, and records how to undo the write.
func (w *work) setCPUs(dir string, cpus cpuset.Set) error {
	return w.write(dir, cpus, w.sets.Wish, w.sets.SetCPUs, w.sets.ClearCPUs)
}

func (w *work) setMems(dir string, mems cpuset.Set) error {
	return w.write(dir, mems, w.sets.WishMems, w.sets.SetMems, w.sets.ClearMems)
}

func (w *work) write(dir string, set cpuset.Set, read func(string) (cpuset.Set, error),
	write func(string, cpuset.Set) error, clear func(string) error) error {
	old, err := read(dir)
	if err != nil {
		return &atError{dir, err}
	}
	w.report.Writes++
	if err := write(dir, set); err != nil {
		return &atError{dir, err}
	}
	w.undo = append(w.undo, undo{dir, func() error {
		if old.IsEmpty() && w.sets.Version == cgroup.V2 {
			return clear(dir)
		}
		return write(dir, old)
	}})
	return nil
}

// verify reads the CPU sets back, and returns an error if they are not the wanted ones.
func (w *work) verify(p *podChange) error {
	for i, leaf := range p.Leaves {
		if p.has[i].gone || leaf.Keep {
			continue
		}
		dir := p.Pod.Leaves[i].Path
		cpus, err := w.sets.CPUs(dir)
		if cgroup.Gone(err) {
			continue
		}
		if err == nil && !cpus.Equal(leaf.CPUs) {
			err = fmt.Errorf("it has CPUs %s where it should have %s: a cgroup above it has fewer, or a partition beside it "+
				"has them", cpus, leaf.CPUs)
		}
		if err != nil {
			return &atError{dir, err}
		}
	}
	return nil
}

// Release undoes Apply: cgroups get the CPUs of the cgroup above them. Leaves with Keep are not
// changed.
func (a Applier) Release(targets []Target) Report {
	w := &work{sets: a.Sets}
	for _, t := range targets {
		w.undo = w.undo[:0]
		if err := w.release(t); err != nil && !cgroup.Gone(err) {
			w.fail(t.Pod, err)
		}
	}
	return w.report
}

func (w *work) release(t Target) error {
	if w.sets.Version == cgroup.V2 {
		return w.releaseV2(t)
	}
	above, err := w.sets.CPUs(path.Dir(t.Pod.Path))
	if err != nil {
		return err
	}
	mems, err := w.sets.Mems(t.Pod.Path)
	if err != nil {
		return err
	}
	has, err := w.sets.CPUs(t.Pod.Path)
	if err == nil && !has.Equal(above) {
		err = w.setCPUs(t.Pod.Path, above)
	}
	for i, leaf := range t.Leaves {
		if leaf.Keep || err != nil {
			continue
		}
		dir := t.Pod.Leaves[i].Path
		has, readErr := w.sets.CPUs(dir)
		if err = readErr; err == nil && !has.Equal(above) {
			err = w.set(dir, has, above)
			w.report.Changed = append(w.report.Changed, dir)
		}
		if err == nil && leaf.Mems != nil {
			err = w.setMems(dir, mems)
		}
		if cgroup.Gone(err) {
			err = nil
		}
	}
	return err
}

func (w *work) releaseV2(t Target) error {
	clear := func(dir string, wish, has func(string) (cpuset.Set, error), clear func(string) error) error {
		before, err := wish(dir)
		if err != nil || before.IsEmpty() {
			return err
		}
		// A set that is the parent's already is as good as none.
		set, err := has(dir)
		if err != nil {
			return err
		}
		above, err := has(path.Dir(dir))
		if err != nil || set.Equal(above) && before.Equal(above) {
			return err
		}
		w.report.Writes++
		return clear(dir)
	}
	dirs, mems := []string{t.Pod.Path}, []bool{false}
	for i, leaf := range t.Leaves {
		if !leaf.Keep {
			dirs, mems = append(dirs, t.Pod.Leaves[i].Path), append(mems, leaf.Mems != nil)
		}
	}
	for i, dir := range dirs {
		writes := w.report.Writes
		err := clear(dir, w.sets.Wish, w.sets.CPUs, w.sets.ClearCPUs)
		if w.report.Writes > writes {
			w.report.Changed = append(w.report.Changed, dir)
		}
		if err == nil && mems[i] {
			err = clear(dir, w.sets.WishMems, w.sets.Mems, w.sets.ClearMems)
		}
		if err != nil && !cgroup.Gone(err) {
			return &atError{dir, err}
		}
	}
	return nil
}
