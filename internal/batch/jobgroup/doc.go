// Package jobgroup keeps a PodGroup for each batch Job, for clients that list PodGroups: dashboards,
// and command lines that count them by queue. Nothing in Lockstep reads these PodGroups. The scheduler
// keeps the gangs of Jobs itself, so a manager runs this package only on request.
//
//	Job ──watch──▶ turn ──▶ create JOB-UID, the name in the annotation of the job's pods
//	                   ├──▶ patch its spec, when the Job's changes
//	                   ├──▶ one status for each phase, with the counts of that moment
//	                   └──▶ delete it while the Job is aborted
//
// A PodGroup costs one create, and two or three statuses. Its Job owns it, so both are deleted together.
package jobgroup
