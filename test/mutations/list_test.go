package mutations

// mutation is a mistake: in file, new replaces the only occurrence of old. The pairs in also are
// further replacements, for behaviour that two pieces of code guard. The test in package pkg must
// then fail.
type mutation struct {
	name     string
	file     string
	old, new string
	pkg      string
	// test is the test's name. It may name a subtest: TestX/a sentence.
	test string
	// env is the environment for tests that run only a sample by default.
	env  []string
	also []string // old, new, old, new
}

const (
	apps        = "internal/application/controller"
	apiwriter   = "internal/apiwriter"
	batch       = "internal/batch"
	cli         = "internal/cli"
	cronJobs    = "internal/batch/cronjob"
	jobFlows    = "internal/batch/flow"
	podsets     = "internal/podset"
	clusterP    = "internal/cluster"
	panicsP     = "internal/panics"
	egress      = "internal/egress"
	fenceP      = "internal/fence"
	informerP   = "internal/informer"
	loopP       = "internal/controlloop"
	manager     = "internal/manager"
	sandbox     = "internal/sandbox"
	tolerant    = "internal/kubeclient"
	unpack      = "internal/unpack"
	workflows   = "internal/workflow/controller"
	shard       = "internal/shard"
	http2client = "internal/http2client"
	placer      = "internal/scheduler/place"
	scheduler   = "internal/scheduler"
	evictor     = "internal/scheduler/evict"
	engine      = "internal/workflow/engine"
	locks       = "internal/workflow/locks"
	resource    = "internal/workflow/resource"
	faults      = "test/faults"
	hostile     = "test/hostile"
)

var mutations = []mutation{
	// CronJobs and JobFlows.
	{"a CronJob that forbids it runs two Jobs at a time", cronJobs + "/decide.go",
		"if len(p.status.Active) > 0 {", "if false {", cronJobs, "TestDecide/forbid: it stays due", nil, nil},
	{"a user's annotation stops a CronJob for ever", cronJobs + "/decide.go",
		"if at := scheduled(j); !at.After(now) {", "if at := scheduled(j); true {", cronJobs, "TestDecide/a job with a forged time", nil, nil},
	{"a Job of a JobFlow that was deleted is created again", jobFlows + "/decide.go",
		"case seen || said != \"\" && said != api.Waiting && v.settled:", "case false:", jobFlows, "TestDecide/deleted before its end", nil,
		[]string{"case said != api.Waiting:\n\t\ts.phase = said", "case false:\n\t\ts.phase = said"}},
	{"a Job begins before the Job that it depends on has completed", jobFlows + "/decide.go",
		"if t.phase != batch.Completed && (!mine || t.job == nil) {", "if t.job == nil {", jobFlows, "TestDecide/it runs", nil, nil},
	{"a JobFlow ends as failed because the watch of Jobs is behind", jobFlows + "/decide.go",
		"said != api.Waiting && v.settled:", "said != api.Waiting:", jobFlows, "TestDecide/the watch may be behind", nil, nil},
	{"the Jobs of a JobFlow are deleted before its status says that it has succeeded", jobFlows + "/decide.go",
		"case before.Phase.Finished():", "case before.Phase.Finished() || phase == api.Succeed:", jobFlows, "TestDecide/not deleted before it is written", nil,
		[]string{"phase, reason, message = before.Phase, before.Reason, before.Message", "reason, message = before.Reason, before.Message"}},
	{"probes of JobFlows use the manager's network as it is", jobFlows + "/probe.go",
		"res, err := p.guard.Do(r)", "res, err := http.DefaultClient.Do(r)", jobFlows, "TestProbes", nil, nil},

	// The writer.
	{"a delete means whatever has the name", apiwriter + "/request.go",
		"if x.uid != \"\" {\n\t\topts.Preconditions", "if false {\n\t\topts.Preconditions", apiwriter, "TestDelete", nil, nil},
	{"an object of another owner is taken for the one created", apiwriter + "/request.go",
		"return other != nil && other.UID == owner.UID", "return other != nil", apiwriter, "TestCreate", nil, nil},
	{"an overloaded server's answer is final", apiwriter + "/retry.go",
		"return outcome{verdict: overloaded, after: after, partial: !apierrors.IsUnexpectedServerError(err)}", "return outcome{verdict: refused}", apiwriter, "TestLostAnswersAndRefusalsDoNotShow", nil, nil},
	{"attempts follow each other at once", apiwriter + "/retry.go",
		"d = min(backoffMin<<attempts, backoffMax)", "d = 0", apiwriter, "TestBackoffGrowsAndObeysTheServer", nil, nil},
	{"Retry-After is not obeyed", apiwriter + "/retry.go",
		"if after > 0 {", "if after < 0 {", apiwriter, "TestBackoffGrowsAndObeysTheServer", nil, nil},
	{"one owner's writes go before all others", apiwriter + "/queue.go",
		"if o.taken++; o.taken >= ownerBatch || o.head == nil {", "if o.taken++; o.head == nil {", apiwriter, "TestQueueTakesTurnsAmongOwners", nil, nil},
	{"a class of writes starves", apiwriter + "/queue.go",
		"if c.passed >= maxPassed[i] {", "if false {", apiwriter, "TestQueueServesClassesInOrderButStarvesNone", nil, nil},

	// The connection.
	{"a request whose connection was lost is taken for one that the server has not looked at", http2client + "/conn.go",
		"c.ended(id, x, fmt.Errorf(\"the connection was lost: %w\", err))", "c.ended(id, x, fmt.Errorf(\"%w\", errUnsent))", http2client, "TestARequestWhoseConnectionIsLostIsNotMadeTwice", nil, nil},
	{"a request that the server says it has not looked at fails", http2client + "/read.go",
		"if id > f.LastStreamID {", "if false {", http2client, "TestAServerThatLooksAtNothing", nil, nil},
	{"a request that the server refused to look at is not made again", http2client + "/read.go",
		"case f.ErrCode == http2.ErrCodeRefusedStream:", "case false:", http2client, "TestARequestThatIsRefusedIsMadeAgain", nil, nil},

	// Who may write.
	{"what waited is written after its term", apiwriter + "/fence.go",
		"func (u boundTerm) check() error {\n\tswitch {\n\tcase u.fence == nil:", "func (u boundTerm) check() error {\n\tswitch {\n\tcase true:",
		apiwriter, "TestNothingIsWrittenAfterTheTerm", nil, []string{"\treturn u.term\n", "\treturn nil\n"}},
	{"what waited is written though its owner's work is another's", apiwriter + "/fence.go",
		"case u.term.Ended() || u.fence.Term(u.owner) == nil:", "case u.term.Ended():", apiwriter, "TestNothingIsWrittenAfterTheTerm/the owner's work became another's", nil, nil},
	{"the term is not asked when bytes go to the kernel", http2client + "/term_check.go",
		"if !c.terms.allHold() {\n\t\t\tc.err = ErrLapsed", "if false {\n\t\t\tc.err = ErrLapsed", http2client, "TestWhatHasLostItsTermIsNotSent", nil, nil},
	{"a term's answer from before a stop counts after it", http2client + "/term_check.go",
		"if time.Since(began) < checkMax {", "if time.Since(began) < time.Hour {", http2client, "TestATermWhoseAnswerIsOldIsAskedAgain", nil, nil},
	{"a share that was renewed late goes on", fenceP + "/term.go",
		"if t.final && t.until.Load() != 0 && !t.Holds() {", "if false {", fenceP, "TestTerm", nil, nil},
	{"a status overwrites whatever is there", apiwriter + "/request.go",
		"\"uid\": x.uid, \"resourceVersion\": x.version,", "\"uid\": x.uid,", apiwriter, "TestStatusOfAnObjectThatChanged", nil, nil},
	{"a deletion of a version deletes any version", apiwriter + "/request.go",
		"opts.Preconditions.ResourceVersion = &x.Version", "_ = x.Version", apiwriter, "TestDeleteOfAVersion", nil, nil},
	{"the lease of a process that lives is freed", manager + "/identity.go",
		"nothing is known about it here.\n\t\treturn false", "nothing is known about it here.\n\t\treturn true", manager, "TestWhoseLeaseIsThatOfAProcessThatHasEnded", nil, nil},
	{"a manager that cannot work on its share keeps it", manager + "/leader.go",
		"failed != nil {\n\t\t\tgiveUp()", "failed != nil {", manager, "TestAManagerThatCannotFollowEnds", nil, nil},
	{"the lease of a dead manager is freed in the place of an old version for ever", manager + "/leader.go",
		"writer.PatchVersion(meta, &coordinationv1.Lease{ObjectMeta: lease.ObjectMeta}, true, patch, nil)",
		"writer.Patch(meta, &coordinationv1.Lease{ObjectMeta: lease.ObjectMeta}, \"application/merge-patch+json\", patch, nil)",
		manager, "TestALeaseIsFreedThoughTheAnswerIsLost", nil, []string{
			"patch := []byte(`[{\"op\":\"add\",\"path\":\"/spec/holderIdentity\",\"value\":\"\"}]`)",
			"patch := fmt.Appendf(nil, `{\"metadata\":{\"resourceVersion\":%q},\"spec\":{\"holderIdentity\":\"\"}}`, lease.ResourceVersion)",
		}},

	// Watches.
	{"a watch that is cut again and again waits up to a minute", tolerant + "/backoff.go",
		"Cap: 2 * time.Second, Steps: 10", "Cap: 30 * time.Second, Steps: 38", tolerant, "TestAWatchThatIsCutAgainAndAgainComesBackSoon", nil, nil},

	// As which user requests are made, and which addresses they reach.
	{"groups are handed over as one text", apiwriter + "/sender.go",
		"for _, g := range x.as.Groups {", "for _, g := range strings.Split(strings.Join(x.as.Groups, \",\"), \",\") {",
		apps, "TestAGroupWithACommaInItsNameIsOneGroup", nil, nil},
	{"a redirect is not judged", egress + "/egress.go",
		"if through == nil {\n\t\treturn g.direct.RoundTrip(r)", "if r.Response != nil {\n\t\treturn http.DefaultTransport.RoundTrip(r)\n\t}\n\tif through == nil {\n\t\treturn g.direct.RoundTrip(r)",
		egress, "TestRedirectsAreJudged", nil, nil},
	{"a redirect takes secrets along", egress + "/egress.go",
		"\t\tnext.Header = kept\n", "", egress, "TestRedirectsAreJudged", nil, nil},
	{"a child has as much memory as it wants", sandbox + "/restrict.go",
		"if race.Enabled {\n\t\t\tbreak", "if true {\n\t\t\tbreak", sandbox, "TestALimitFailsItsOneRequest", nil,
		[]string{"u.memory = (resident - shared) * int64(os.Getpagesize())", "u.memory = 0"}},
	{"a child may answer with any amount", sandbox + "/serve.go",
		"if int64(len(response)) > limits.OutputBytesMax {", "if false {", sandbox, "TestALimitFailsItsOneRequest", nil, nil},
	{"a child may make any system call", sandbox + "/restrict.go",
		"\ttry(\"seccomp\", filterCalls())\n", "", sandbox, "TestAChildReachesNothing", nil, nil},
	{"what is unpacked has no bound", unpack + "/gzip.go",
		"if size += int64(n); size > limit.Bytes {", "if size += int64(n); false {", unpack, "TestDataWithinItsLimitIsUnpacked", nil, nil},

	// Malformed objects do not disturb others.
	{"an object that does not decode is an error of its list", tolerant + "/lenient.go",
		"if err == nil || into != nil {\n\t\treturn o, gvk, err", "if true {\n\t\treturn o, gvk, err", tolerant, "TestObjectsThatDoNotDecodeAreMarkedAndTheOthersWhole", nil, nil},
	{"an object that does not decode is one among others", informerP + "/informer.go",
		"if malformed.Of(t) != nil {\n\t\treturn i.putApart", "if false {\n\t\treturn i.putApart", informerP, "TestHandlersFollowTheCache", nil, nil},
	{"one namespace's failures are everybody's", apiwriter + "/breakers.go",
		"k.verb, k.namespace = x.verb, x.name.Namespace", "k.verb = x.verb", apiwriter, "TestAScopeIsDownWhenItsPartsAre", nil, nil},
	{"a resource is down because it is in one namespace", apiwriter + "/breakers.go",
		"return len(namespaces) > 1 && (wider.parent != nil || len(resources) > 1)", "return wider.parent != nil || len(resources) > 1",
		apiwriter, "TestAScopeIsDownWhenItsPartsAre", nil, nil},
	{"everything is down because one resource is", apiwriter + "/breakers.go",
		"return len(namespaces) > 1 && (wider.parent != nil || len(resources) > 1)", "return len(namespaces) > 1",
		apiwriter, "TestAScopeIsDownWhenItsPartsAre", nil, nil},
	{"a panic ends the process", panicsP + "/panics.go",
		"\tif g == nil {\n\t\tdo()", "\tif true {\n\t\tdo()", manager, "TestAPanicConcernsOneObject", nil, nil},
	{"an object whose handler panicked is one among others", informerP + "/informer.go",
		"if failed != nil && i.mayBeApart() {", "if false {", manager, "TestAPanicConcernsOneObject", nil, nil},
	{"an object that was set apart is handed over again by what is written about it", informerP + "/informer.go",
		"\tif i.staysApart(t) {", "\tif false {", informerP, "TestAnObjectThatWasSetApartIsNotHandedOverAgain", nil, nil},
	{"a malformed workflow that is deleted is held for ever", "internal/workflow/artifactgc/controller.go",
		"\t\t\tif stuck(w) {", "\t\t\tif false {", hostile, "TestMalformedObjectsCanBeDeleted", nil, nil},
	{"a malformed application that is deleted is held for ever", apps + "/reconcile.go",
		"if o == nil || o.DeletionTimestamp != nil {\n\t\tc.remove", "if o == nil || o.DeletionTimestamp != nil && err == nil {\n\t\tc.remove",
		hostile, "TestMalformedObjectsCanBeDeleted", nil, nil},
	{"an application whose record is spoilt is held for ever", apps + "/tracker.go",
		"\t\tc.releaseUnreadable(a, o)\n", "", hostile, "TestMalformedObjectsCanBeDeleted", nil, nil},
	{"a malformed object fails a list of the command line", tolerant + "/lenient.go",
		"return clientFor(cfg, nil, gv, jsonType, lenientCodecs(codecsOf(s), s))", "return clientFor(cfg, nil, gv, jsonType, codecsOf(s))",
		hostile, "TestMalformedObjectsAreListed", nil, nil},
	{"a malformed workflow is listed as pending", "internal/workflow/display/head.go",
		"if malformed.Of(w) != nil {\n\t\treturn \"Malformed\"", "if malformed.Of(w) != nil && w == nil {\n\t\treturn \"Malformed\"",
		hostile, "TestMalformedObjectsAreListed", nil, nil},
	{"a malformed application is listed without a phase", cli + "/applications/list.go",
		"\t\t\t\tapps[i].Status.Phase = workflows.Malformed\n", "\t\t\t\t_ = workflows.Malformed\n", hostile, "TestMalformedObjectsAreListed", nil, nil},
	{"a malformed template is listed without saying so", cli + "/workflows/templates.go",
		"[]string{o.GetName(), workflows.Malformed}", "[]string{o.GetName()}", hostile, "TestMalformedObjectsAreListed", nil, nil},
	{"a list does not say why an object is malformed", cli + "/command/print.go",
		"\tif why != nil {\n\t\tfmt", "\tif false {\n\t\tfmt", hostile, "TestMalformedObjectsAreListed", nil, nil},

	// Keys and records.
	{"a post wakes nobody", loopP + "/loop.go",
		"if e != nil {\n\t\tl.queue.Add(key)\n\t}", "", loopP, "TestAPostHasItsTurn", nil, nil},
	{"a message for an object reaches the next of its name", loopP + "/loop.go",
		"if m.to == uid || m.to == Anyone {", "if true {", loopP, "TestPostsAreForOneLifeOfAKey", nil, nil},
	{"a key that is to be woken later is woken at once", loopP + "/loop.go",
		"l.queue.AddAfter(key, d)", "l.queue.Add(key)", loopP, "TestKeysAreWokenAtTheEarliestTimeAskedFor", nil, nil},

	// The division of keys among managers.
	{"a list that was begun before the lease lapsed counts", shard + "/table.go",
		"if t.stale || t.lapsed(now) {", "if t.lapsed(now) {", shard, "TestAListFromBeforeALapse", nil, nil},
	{"the members of a list are not looked at", shard + "/table.go",
		"for _, l := range leases {\n\t\tif l.Member == t.self {", "for _, l := range leases[:0] {\n\t\tif l.Member == t.self {", shard, "TestNoKeyIsEverOwnedTwice", nil, nil},
	{"a member that comes waits for its next renewal", shard + "/member.go",
		"return !t.settled()", "return false", shard, "TestTheFirstListIsActedUponAtOnce", nil, nil},
	{"members that live are taken for dead", shard + "/table.go",
		"if now.Sub(o.since) < t.times.Expiry {", "if now.Sub(o.since) < t.times.Period {", shard, "TestOnlyTheDeadAreTakenForDead", nil, nil},
	{"leases of members that live are deleted", shard + "/table.go",
		"return now.Sub(o.since) < 10*t.times.Expiry", "return now.Sub(o.since) < t.times.Period", shard, "TestOnlyTheDeadAreTakenForDead", nil, nil},

	// The model of the cluster.
	{"a failed pod keeps its room", clusterP + "/cluster.go",
		"return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed", "return o.Status.Phase == corev1.PodSucceeded",
		clusterP, "TestTheLifeOfAPod", nil, nil},
	{"a pod that could not be written keeps its room", clusterP + "/cluster.go",
		"if p := c.pods[name]; p.assumedBy(which) {\n\t\tc.dropAssumption(p)\n\t\tc.settle(p)", "if p := c.pods[name]; p.assumedBy(which) {",
		scheduler, "TestForgottenPodsMakeRoom", nil, nil},
	{"what is gone from a new list stays", informerP + "/informer.go",
		"for _, t := range before {\n\t\ti.tellGone(t)\n\t}", "", informerP, "TestHandlersFollowTheCache", nil, nil},

	// Placement.
	{"containers of one pod are promised the same memory", "internal/cputopology/allocate/allocate.go",
		"part.promise(scratch, set, a.memory)", "_ = part", "internal/cputopology/allocate", "TestContainersOfOnePodDoNotShareMemory", nil, nil},
	{"filters are blamed for a full cluster", placer + "/placer.go",
		"case len(x.heap) == 0:", "case false:", placer, "TestAFullClusterLacksResources", nil, nil},
	{"a gang that does not fit leaves a part behind", placer + "/placer.go",
		"p.rollback()\n\t\tif i == 0", "if i == 0", placer, "TestPlacementIsSafe", nil, nil},
	{"a gang starts without its minimum", placer + "/placer.go",
		"if len(p.log) >= g.MinMember {\n\t\treturn nil\n\t}\n\t// Small", "if true {\n\t\treturn nil\n\t}\n\t// Small", placer, "TestGangs", nil, nil},
	{"parked gangs are not woken", scheduler + "/share/ledger.go",
		"l.move(it, &it.queue.ready)", "l.move(it, &it.queue.parked)", scheduler + "/share", "TestParking", nil, nil},
	{"what a queue held stays charged to it", scheduler + "/queues.go",
		"return a != 0 }) {\n\t\ts.ledger.Charge(queue, delta)", "return a > 0 }) {\n\t\ts.ledger.Charge(queue, delta)", scheduler, "TestQueues", nil, nil},

	// Pods of jobs and workflows.
	{"the answer to an earlier write of a pod counts", podsets + "/write.go",
		"\tw.slot().attempt++ // an", "\t// an", podsets, "TestAWriteThatWaitsIsOvertaken", nil, nil},
	{"a pod that is gone is bound", podsets + "/set.go",
		"\ts.overtaken(r)\n\tif slot.state == Queued {", "\tif slot.state == Queued {", podsets, "TestAWriteThatWaitsIsOvertaken", nil, nil},
	{"a pod that was deleted unseen is waited for", podsets + "/set.go",
		"slot.uid, slot.version = p.UID, p.ResourceVersion", "slot.uid, slot.version = p.UID, \"\"", podsets, "TestAPodThatWasDeletedUnseen", nil, nil},
	{"a gang below its minimum keeps its pods", podsets + "/gang.go",
		"s.Delete(r, nil, \"roll-back-gang\")", "_ = r", batch, "TestAJobBelowItsMinimumHoldsNothing", nil, nil},

	// Jobs.
	{"a job runs once more than maxRetry", batch + "/lifecycle/lifecycle.go",
		"if s.Retries < maxRetry {", "if s.Retries <= maxRetry {", batch + "/lifecycle", "TestNext", nil, nil},
	{"failed pods do not count towards a job's end", batch + "/lifecycle/lifecycle.go",
		"case all.Succeeded+all.Failed >= n:", "case all.Succeeded >= n:", batch + "/lifecycle", "TestNext", nil, nil},
	{"a policy resumes a job that runs, again and again", batch + "/lifecycle/policies.go",
		"if p.Action == bus.ResumeJobAction {", "if false {", batch + "/lifecycle", "TestReact", nil, nil},
	{"a pod has waited too long again as soon as a policy has acted", batch + "/policies.go",
		"if since.Before(p.acted) {", "if false {", batch, "TestAPolicyOnPodsThatWait", nil, nil},
	{"a restart deletes its pods before it is recorded", batch + "/reconcile.go",
		"r.recording = r.recording || step.NewRun || step.Retries != r.status.RetryCount", "", faults, "TestKilledAtEveryWrite",
		[]string{"LOCKSTEP_CRASH_LOAD=batch", "LOCKSTEP_CRASH_POINTS=19-22"}, nil},
	{"a run that has begun is begun again after a crash", batch + "/reconcile.go",
		"if r.status.State.Phase == api.Restarting && p.Annotations", "if false && p.Annotations", faults, "TestKilledAtEveryWrite",
		[]string{"LOCKSTEP_CRASH_LOAD=batch", "LOCKSTEP_CRASH_POINTS=19-24"}, nil},
	{"an action is begun while a conflict keeps it from the status", batch + "/reconcile.go",
		"unwritable := left > 0 || r.awaitsVersion()", "unwritable := left > 0", batch, "TestACommandWaitsForAConflict", nil, nil},
	{"a run is begun that the status cannot tell", batch + "/reconcile.go",
		"if unwritable && facts.Phase == api.Restarting {", "if false {", batch, "TestTheNextRunBeginsWhenItsStatusCanBeWritten", nil, nil},
	{"a command to a queue is taken for carried out while its status waits", batch + "/queues.go",
		"return // wait until the watch shows the queue's present version", "r.answer(nil)\n\t\treturn", batch, "TestACommandToAQueueOutlivesAConflict", nil, nil},
	{"the status of a queue is what was written last, for ever", batch + "/queues.go",
		"if r.version != \"\" && !informer.Older(", "if false && !informer.Older(", batch, "TestTheStatusOfAQueueIsRepaired", nil, nil},
	{"a command is deleted before it is carried out", batch + "/commands.go",
		"\t\tq.handed = c.jobs.loop.Post(", "\t\tc.delete(target, q, cmd)\n\t\tq.handed = c.jobs.loop.Post(",
		manager, "TestACommandIsCarriedOutOnceWhereverTheManagerEnds/job, before the status", nil, nil},

	// Applications, under kills.
	{"what has left an application is forgotten and stays", "internal/application/deploy/collect.go",
		"gone, err := d.removeOne(a, m, strategy == plan.GCNever, propagation, a.As)", "gone, err := propagation != \"\", error(nil)", faults, "TestKilledAgainAndAgain", nil, nil},
	{"what is never to be deleted is deleted with its application", "internal/application/deploy/collect.go",
		"stays := orphan || strategy == plan.GCNever", "stays := orphan", apps, "TestEveryStrategyOfCollection/the application is deleted/never", nil, nil},
	{"dependents are deleted with their application whatever the policy", "internal/application/deploy/collect.go",
		"gone, err := d.removeOne(a, m, stays, propagation, nil)", "propagation = metav1.DeletePropagationBackground\n\t\tgone, err := d.removeOne(a, m, stays, propagation, nil)",
		apps, "TestPropagationHoldsForEveryDeletion/orphan", nil, nil},
	{"a rule is forgotten with its policy", "internal/application/deploy/collect.go",
		"strategy = a.Tracker.Strategy(m)", "strategy = \"\"", apps, "TestEveryStrategyOfCollection/the policy leaves with the object", nil, nil},
	{"an application waits for a cluster in which its objects stay", "internal/application/deploy/collect.go",
		"return d.unreleased(a, ref, stays, &objects.ErrDown{Err: err})", "return false, &objects.ErrDown{Err: err}",
		apps, "TestADeletionDoesNotWaitForWhatStays/the cluster cannot be reached", nil, nil},
	{"a manager that was started writes statuses that are right again", "internal/application/report/report.go",
		"conflicted == \"\" && Same(before, s)", "conflicted == \"\" && r.Status != nil && Same(before, s)", faults, "TestKilledAgainAndAgain", nil, nil},

	// Workflows.
	{"a pod that ends before its create is answered is unwanted", "internal/podset/write.go",
		"|| !s.unwanted(slot, p) {", "{", workflows, "TestAPodThatEndsBeforeItsCreateIsAnswered/quick", nil, nil},
	{"a mutex has two holders", locks + "/table.go",
		"if l := t.locks[key]; l.queue[0] != r || len(l.holders) >= l.limit {", "if l := t.locks[key]; l.queue[0] != r || len(l.holders) > l.limit {", locks, "TestMutexGoesFromHolderToHolder", nil, nil},
	{"a failed attempt is not followed by another", engine + "/retry.go",
		"case !last.Phase.FailedOrError():\n\t\tn.give(last.Outputs)", "case true:\n\t\tn.give(last.Outputs)", engine, "TestScripts", nil, nil},
	{"a node whose timeout is not valid takes a place for ever", engine + "/leaf.go",
		"if l.startTimers(made); n.Phase.Fulfilled() {", "if l.startTimers(made); false {", engine, "TestScripts/timeout-invalid", nil, nil},
	{"a daemon of a hook counts as done twice", engine + "/hooks.go",
		"if h.done[n.ID] {", "if false {", engine, "TestScripts/hook-daemon", nil, nil},
	{"a stop takes effect only after the backoff of a retry", engine + "/run.go",
		"\t\t\ty.stop(message)\n", "\t\t\t_ = y\n", engine, "TestScripts/retry-stop", nil, nil},
	{"workflows wait for a malformed template that was deleted", workflows + "/controller.go",
		"\tc.sweepAwaited()\n", "", workflows, "TestWorkflowsDoNotWaitForADeletedTemplate", nil, nil},
	{"a refused request keeps its locks known", locks + "/table.go",
		"for _, key := range r.Keys {\n\t\t\t\tt.tidy(key)\n\t\t\t}", "t.tidy(key)", locks, "TestARefusedRequestLeavesNoLocks", nil, nil},
	{"what is inserted into raw JSON is not quoted", "internal/workflow/template/program.go",
		"quoted, _ := json.Marshal(out)", "quoted := `\"` + out + `\"`", "internal/workflow/template", "TestExpressionsInRawJSON", nil,
		[]string{"b.Write(quoted)", "b.WriteString(quoted)"}},
	{"an error that passes while an artifact repository is read fails the workflow", workflows + "/repository.go",
		"if err != nil && !refusedToRead(err) {", "if false {", workflows, "TestARepositoryThatIsBeingReadHoldsUpNoOtherWorkflow", nil, nil},
	{"a metric of another kind is served under the same name", workflows + "/workflow_metrics.go",
		"if f != nil && f.kind != e.Kind {", "if false {", workflows, "TestMetricsThatContradictOthersAreDropped", nil, nil},
	{"a workflow that is left to the leader is taken for finished", workflows + "/reconcile.go",
		"c.leaveToLeader(r)\n\t\treturn\n", "r.run, r.next = nil, statusChanges{}\n",
		workflows, "TestPodsOfAWorkflowThatIsLeftToTheLeaderStay", nil, nil},
	{"a workflow that is left to the leader is loaded again at once", workflows + "/library.go",
		"r.writing, r.writes = id, r.writes+1", "_ = id", workflows, "TestWorkflowsAreLeftToTheLeader", nil, nil},
	{"a create waits for a pod of which nothing is posted", workflows + "/pods.go",
		" && metav1.IsControlledBy(old, r.object) {", " && metav1.GetControllerOfNoCopy(old) != nil {", workflows, "TestAPodNameThatAnEarlierWorkflowOfTheSameNameHas", nil, nil},
	{"a workflow that runs again has the artifact repository of before", workflows + "/reconcile.go",
		"r.refusal, r.objects, r.repository = podset.Refusal{}, nil, nil", "r.refusal, r.objects = podset.Refusal{}, nil",
		workflows, "TestAResetClearsEverythingOfARun", nil, nil},

	// Who is next, and overdue gangs.
	{"surplus is placed with the minimum", scheduler + "/pending.go",
		"Most: e.need,", "Most: 0,", scheduler, "TestSurplusComesAfterMinimums", nil, nil},
	{"surplus has its gang's place in the line", scheduler + "/pending.go",
		"Surplus: e.need == 0 &&", "Surplus: false && e.need == 0 &&", scheduler, "TestSurplusHoldsUpNobody", nil, nil},
	{"a job that grows comes before all others", batch + "/gang.go",
		" && (!r.everRan() || held < r.most),", ",", batch, "TestAJobThatGrowsWaitsLikeOthers", nil, nil},
	{"pods that end late end first", scheduler + "/backfill/backfill.go",
		"a.Ends.Compare(b.Ends)", "b.Ends.Compare(a.Ends)", scheduler + "/backfill", "TestPlansAreSoundAndSoonest", nil, nil},
	{"a gang at the end of its queue is overdue", scheduler + "/overdue.go",
		"return e.Before(o)", "return o.Before(e)", scheduler, "TestALargeGangStartsBehindAnEndlessStream", nil, nil},
	{"what is kept is used for too long", scheduler + "/overdue.go",
		"return length > 0 && !r.s.clock", "return length > 0 || !r.s.clock", scheduler, "TestBackfill", nil, nil},
	{"a claim of an overdue gang ends when it does not fit", scheduler + "/overdue.go",
		"(byQueue || len(c.room) > 0) && slices.Equal", "false && slices.Equal", scheduler, "TestALargeGangStartsBehindAnEndlessStream", nil, nil},
	{"a gang that its queue holds up is never overdue", scheduler + "/overdue.go",
		"\t\tc.sum = c.waits.minimum\n", "\t\treturn nil\n", scheduler, "TestALargeGangStartsBehindAnEndlessStream", nil, nil},

	// Evictions.
	{"the place of victims is not kept for their evictor", scheduler + "/evictions.go",
		"\tv.s.cluster.SetClaims(c.gang, c.room)\n", "", scheduler, "TestAGangOfHigherPriorityTakesThePlaceOfOthers", nil, nil},
	{"what a queue keeps for a claimant counts as free in the queue", scheduler + "/evictions.go",
		"\tv.s.ledger.Charge(c.queue, c.sum)\n", "", scheduler, "TestPriorityCountsInAFullQueue", nil,
		[]string{"\t\tv.s.ledger.Charge(c.queue, place.Vector(nil).Plus(c.sum, -1))\n", ""}},
	{"nobody learns that a claim has ended", scheduler + "/evictions.go",
		"\tv.s.cluster.Freed(c.room)\n", "", scheduler, "TestAClaimEndsWithItsGang", nil, nil},
	{"a claim survives the loss of its node", scheduler + "/evictions.go",
		" || !v.usable(c) {", " {", scheduler, "TestAClaimEndsWithItsNodeAndIsMadeAgainElsewhere", nil, nil},
	{"after a restart the place of pods that are leaving is not kept", scheduler + "/evictions.go",
		"case len(plan.Victims) == 0 && plan.Leaving == 0:", "case len(plan.Victims) == 0:", scheduler, "TestARestartEvictsNobodyElse", nil, nil},
	{"equal gangs wait for the victims of the first", scheduler + "/evictions.go",
		"\tv.s.pending.setClaimed(e, true)\n", "\te.claimed = true\n", scheduler, "TestEveryHeadOfAShapeGetsItsOwnVictims", nil, nil},
	{"pods that are not deleted are waited for forever", scheduler + "/evictions.go",
		"p.DeletionTimestamp == nil && now.Sub(g.since) > goingPatience", "false", scheduler, "TestAnEvictionThatIsNotCarriedOut", nil, nil},
	{"an evicted job comes back pod by pod", batch + "/gang.go",
		"ran := r.everRan() && alive", "ran := r.everRan()", batch, "TestAnEvictedJobComesBackWhole", nil, nil},
	{"an eviction counts as a retry", batch + "/lifecycle/lifecycle.go",
		"if cause.Free {", "if false {", batch + "/lifecycle", "TestNext", nil, nil},
	{"what is stated that a queue deserves is not divided first", scheduler + "/share/divide.go",
		"q.first = min(stated, asks(q))", "_ = stated", scheduler + "/share", "TestDeserved", nil, nil},

	// Applications.
	{"a restart writes the tracker again", "internal/application/deploy/collect.go",
		"dirty = dirty || !records.SameJSON(a.Tracker.Applied[ref], r.JSON)", "dirty = true",
		apps, "TestAManagerThatEndsAfterEachWriteComesToAnEnd/outputs of components", nil, nil},
	{"records that are written differently are taken for different", "internal/application/records/tracker.go",
		"return errX == nil && errY == nil && bytes.Equal(x, y)", "return errX == nil && errY == nil && x == nil && y == nil",
		"internal/application/records", "TestRecordsAreComparedAsTheTrackerHasThem", nil, nil},
	{"a create that failed and was carried out is said to fail until a restart", "internal/application/deploy/dispatch.go",
		"\t\ta.Writes.Forget(records.RefKey(r.Ref))\n", "", apps, "TestAFailureThatHasMendedItselfIsNotSaid", nil, nil},
	{"a delete that failed and was carried out is said to fail until a restart", "internal/application/deploy/collect.go",
		"\t\ta.Writes.Forget(name)\n", "", apps, "TestAFailureThatHasMendedItselfIsNotSaid", nil, nil},
	{"a watch that fails once is said in a status", "internal/application/objects/kind_watch.go",
		"if err != nil && now.Sub(w.failing)", "if err != nil && err == nil && now.Sub(w.failing)", "internal/application/objects", "TestTroublesThatPassAreNotSaid", nil, nil},
	{"a step that was resumed is paused again after a restart", "internal/application/flow/advance.go",
		"\tmaps.Copy(a.d.Outputs, r.Outputs)\n\t// Resumed", "\tmaps.Copy(a.d.Outputs, r.Outputs)\n\tdelete(a.d.Resumed, s.Name)\n\t// Resumed",
		apps, "TestAManagerThatEndsAfterEachWriteComesToAnEnd/a pause", nil, nil},
	{"what a server forbids while it starts is said of every application", "internal/manager/authors.go",
		"apierrors.IsForbidden(err) && waited >= kubeclient.TransientMax(err)", "apierrors.IsForbidden(err)", "internal/manager", "TestWhatCannotBeLookedAtIsNoAnswer", nil, nil},
	{"what a server forbids while it starts is final", "internal/apiwriter/dispatch.go",
		" || x.deniedForNow(err, ended)", "", "internal/apiwriter", "TestAWriteThatIsForbiddenForAMomentIsMade", nil, nil},
	{"objects are created that only the manager's memory names", "internal/application/records/keeper.go",
		"r.unwritten = true\n", "\n", "internal/application/records", "TestNamesOfARefusedWriteAreNotStored", nil, nil},
	{"an application on which a pass has panicked is tried again and again", apps + "/controller.go",
		"\tif c.leavesAlone(k) {\n\t\treturn\n\t}\n", "", "internal/manager", "TestAPanicConcernsOneObject", nil, nil},
	{"of several statuses without an answer only the last is remembered", apiwriter + "/request.go",
		"x.unanswered = append(x.unanswered, sum)", "x.unanswered = append(x.unanswered[:0], sum)", apiwriter,
		"TestAStatusWhoseAnswersWereLostTwiceIsNoConflict", nil, nil},
	{"a late answer is about the next pod of the name", podsets + "/gang.go",
		"write{r, a.Node, a.Annotations, a.Assumption}", "write{r, a.Node, a.Annotations, 0}", podsets, "TestALateAnswerKeepsTheRoomOfTheNextPod", nil, nil},
	{"an action of a step has the rights of whoever is the author when it is sent", "internal/application/steps/actions.go",
		"t.Writer.Patch(meta, o,", "meta.As = x.a.As\n\t\t\tt.Writer.Patch(meta, o,", "internal/application/steps",
		"TestAnActionHasTheRightsOfTheAuthorWhoseTurnBeganIt", nil, nil},
	{"the API server is asked for its kinds under a lock that all need", "internal/application/objects/kinds.go",
		"groups, err := restmapper.GetAPIGroupResources(client)",
		"k.mu.Lock()\n\t\tgroups, err := restmapper.GetAPIGroupResources(client)\n\t\tk.mu.Unlock()",
		"internal/application/objects", "TestDiscoveryHoldsNoLock", nil, nil},
	{"objects of an API that is down are taken for deleted", "internal/application/objects/kinds.go",
		"\tif d.failed != nil {", "\tif d.failed == nil && d.failed != nil {", "internal/application/deploy",
		"TestObjectsOfAnAPIThatIsDownRemain", nil, nil},
	{"a starting manager does not know what a step with an input of the context has deployed", "internal/application/steps/units.go",
		"outputs, context := a.Tracker.Flow.Outputs, w.context()", "outputs, context := a.Tracker.Flow.Outputs, map[string]any{}",
		"internal/application/steps", "TestAStepWithAnInputOfTheContextIsResumed", nil, nil},
	{"any assumption of a name is meant", clusterP + "/cluster.go",
		"(which == 0 || p.assume.id == which)", "true", clusterP, "TestTheAnswerToAnEarlierWriteChangesNothing", nil, nil},
	{"a resource step takes one object's state for another's", resource + "/resource.go",
		"a.await(ctx, r.target, conditions, r.object)", "a.await(ctx, r.target, conditions, results[len(results)-1].object)", resource,
		"TestEachObjectHasToMeetTheConditions", nil, nil},
	{"a resource step creates an object twice", resource + "/resource.go",
		"a.client.Create(ctx, path, body, &out)", "a.client.Do(ctx, http.MethodPost, path, \"application/json\", body, &out)", resource, "TestCreateIsNotRepeated", nil, nil},
	{"a volume of ours has the name of a user's", "internal/workflow/pods/locate.go",
		"return \"lockstep-secret-\" + name", "return \"secret-\" + name", "internal/workflow/pods", "TestBuild/secrets", nil, nil},
	{"the log of a container that never starts is awaited for ever", "internal/submit/workflows/logs.go",
		"last || !apierrors.IsBadRequest(err)", "last && false || !apierrors.IsBadRequest(err)", "internal/submit/workflows", "TestFollowingEndsAtAPodThatNeverStarted", nil, nil},
	{"an uninstallation frees the first page of objects only", "internal/install/uninstall.go",
		"list, err := resource.List(ctx, o)\n", "list, err := resource.List(ctx, o)\n\t\tif list != nil {\n\t\t\tlist.SetContinue(\"\")\n\t\t}\n", "internal/install", "TestUninstallFreesAllObjectsAtOnce", nil, nil},
	{"victims have the claimant's priority", evictor + "/allow.go",
		"g.Priority >= c.Priority:", "g.Priority > c.Priority:", evictor, "TestFind/priorities must be lower", nil,
		[]string{"p.Priority >= f.claim.Priority:", "p.Priority > f.claim.Priority:"}},
	{"victims include a protected pod with its gang", evictor + "/allow.go",
		"g.whole = all && !own &&", "g.whole = !own &&", evictor, "TestFind/a protected pod protects its gang", nil, nil},
	{"victims leave their queue below its guarantee", evictor + "/allow.go",
		"q.used.At(dim)-taken[dim]-a < floor", "q.used.At(dim)-taken[dim] < floor", evictor,
		"TestFind/a high priority takes nothing that is guaranteed to another queue", nil, nil},
	{"victims can claim their resources back", evictor + "/allow.go",
		"q.used.At(dim)-taken[dim]-also.At(dim) > deserved", "q.used.At(dim)-taken[dim]-also.At(dim) >= deserved", evictor,
		"TestFind/a high priority takes nothing that another queue deserves", nil, nil},
	{"victims are evicted although pods are leaving", evictor + "/search.go",
		"if p.Leaving {\n\t\t\tf.nodes.lift(p)", "if p.Leaving {\n\t\t\t_ = p", evictor, "TestFind/pods that are leaving are enough", nil, nil},
	{"victims that are not needed are evicted", evictor + "/choose.go",
		"if f.feasible() {\n\t\t\t\tdropped = true", "if false {\n\t\t\t\tdropped = true", evictor,
		"TestVictimsOfEarlierStepsAreDropped", nil, nil},
	{"victims are many gangs instead of few", evictor + "/victims.go",
		"cmp.Compare(p.gangs, o.gangs),\n", "0,\n", evictor, "TestFind/one gang of two is better than two gangs of one", nil, nil},
	{"victims depend on the order of the gangs", evictor + "/search.go",
		"slices.SortFunc(order, func(a, b *Gang) int { return cmp.Compare(a.Key, b.Key) })", "", evictor,
		"TestEqualGangsHaveAnOrder", nil, nil},
	{"victims of an earlier claim keep their disruption budget", evictor + "/search.go",
		"f.budgets[b] = max(0, f.budgets[b]-1)", "_ = b", evictor, "TestAcceptedPlansArePartOfTheState", nil, nil},
}
