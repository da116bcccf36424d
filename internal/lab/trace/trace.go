package trace

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Job is a job of a trace.
type Job struct {
	// Arrival is when it arrives, in seconds since the first job.
	Arrival float64
	Pods    int
	// Duration is how long its pods run, in seconds; 0 is until the end of the trace.
	Duration float64
}

// Trace is a load over time.
type Trace struct {
	// Format is the name of the format that it was read from.
	Format string
	// Jobs are in the order of their arrival.
	Jobs []Job
	// Skipped counts jobs that were left out, because they have no pods or no times.
	Skipped int
}

// jobsMax bounds a trace, podsMax a job, and lineMax a line in bytes.
const (
	jobsMax = 1_000_000
	podsMax = 1_000_000
	lineMax = 1 << 20
)

// The formats.
const (
	CSV     = "CSV"
	SWF     = "Standard Workload Format"
	Alibaba = "Alibaba cluster-trace-v2018"
)

// header is the first line of a CSV.
const header = "arrival,pods,duration"

// Parse reads a trace, which may be compressed with gzip. The format is recognised by the first line
// that is not empty.
func Parse(r io.Reader) (*Trace, error) {
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		buffered = bufio.NewReader(z)
	}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(make([]byte, 1<<16), lineMax)
	t := &Trace{}
	var p parser
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		var err error
		if p == nil {
			if p, t.Format = recognise(line); p == nil {
				return nil, fmt.Errorf("line %d: is no trace in a known format: %s, %s or %s", n, CSV+" with the header "+header, SWF, Alibaba)
			}
			if t.Format == CSV {
				continue
			}
		}
		if err = p.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, errors.New("is empty")
	}
	jobs, skipped := p.jobs()
	t.Skipped = skipped
	return t, t.finish(jobs)
}

// finish sorts jobs, and counts times from the first.
func (t *Trace) finish(jobs []Job) error {
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(a.Arrival, b.Arrival) })
	for i := range jobs {
		if jobs[i].Pods > podsMax {
			return fmt.Errorf("a job has %d pods, and the bound is %d", jobs[i].Pods, podsMax)
		}
	}
	if len(jobs) == 0 {
		return errors.New("has no jobs")
	}
	first := jobs[0].Arrival
	for i := range jobs {
		jobs[i].Arrival -= first
	}
	t.Jobs = jobs
	return nil
}

// parser reads the lines of one format.
type parser interface {
	line(text string) error
	jobs() (jobs []Job, skipped int)
}

// recognise returns the parser of the format that a first line is of, or nil.
func recognise(line string) (parser, string) {
	switch {
	case strings.ReplaceAll(strings.ToLower(line), " ", "") == header:
		return &list{read: csvLine}, CSV
	case strings.HasPrefix(line, ";"), len(strings.Fields(line)) == swfFields && !strings.Contains(line, ","):
		return &list{read: swfLine}, SWF
	case strings.Count(line, ",") == alibabaFields-1:
		return &alibaba{by: map[string]*span{}}, Alibaba
	}
	return nil, ""
}

// list is a parser of formats with a job on each line.
type list struct {
	read    func(line string) (j Job, ok bool, err error)
	all     []Job
	skipped int
}

func (l *list) line(text string) error {
	if strings.HasPrefix(text, ";") || strings.HasPrefix(text, "#") {
		return nil
	}
	j, ok, err := l.read(text)
	switch {
	case err != nil:
		return err
	case !ok:
		l.skipped++
		return nil
	case len(l.all) == jobsMax:
		return fmt.Errorf("has more than %d jobs", jobsMax)
	}
	l.all = append(l.all, j)
	return nil
}

func (l *list) jobs() ([]Job, int) { return l.all, l.skipped }

func csvLine(line string) (j Job, ok bool, err error) {
	fields := strings.Split(line, ",")
	if len(fields) != 3 {
		return j, false, fmt.Errorf("has %d fields, want %s", len(fields), header)
	}
	if j.Arrival, err = number(fields[0]); err == nil {
		j.Pods, err = strconv.Atoi(strings.TrimSpace(fields[1]))
	}
	if err == nil {
		j.Duration, err = number(fields[2])
	}
	if err == nil && (j.Pods < 1 || j.Duration < 0) {
		err = fmt.Errorf("%q: want at least one pod, and a duration that is not negative", line)
	}
	return j, true, err
}

func number(text string) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err == nil && (math.IsNaN(x) || math.IsInf(x, 0)) {
		err = fmt.Errorf("%q is no time", text)
	}
	return x, err
}

// swfFields is the number of fields of a line of the Standard Workload Format. Their meanings are
// those of the Parallel Workloads Archive; -1 is unknown.
const swfFields = 18

func swfLine(line string) (j Job, ok bool, err error) {
	fields := strings.Fields(line)
	if len(fields) != swfFields {
		return j, false, fmt.Errorf("has %d fields, want %d", len(fields), swfFields)
	}
	var x [8]float64
	for i := range x {
		if x[i], err = number(fields[i]); err != nil {
			return j, false, err
		}
	}
	// Fields count from 1: 2 is the submission, 4 the time of running, 5 the processors that the job
	// got, 8 those that it requested.
	j = Job{Arrival: x[1], Duration: x[3], Pods: int(x[4])}
	if j.Pods < 1 {
		j.Pods = int(x[7])
	}
	return j, j.Arrival >= 0 && j.Duration > 0 && j.Pods > 0, nil
}

// alibabaFields is the number of fields of batch_task.csv: name, instances, job, type, status, start,
// end, CPU, memory.
const alibabaFields = 9

// alibaba adds the tasks of a job: it arrives with the first task, and ends with the last.
type alibaba struct {
	by      map[string]*span
	order   []string
	skipped int
}

type span struct {
	pods     int
	from, to float64
}

func (a *alibaba) line(text string) error {
	fields := strings.Split(text, ",")
	if len(fields) != alibabaFields {
		return fmt.Errorf("has %d fields, want %d", len(fields), alibabaFields)
	}
	instances, err := number(cmp.Or(fields[1], "0"))
	if err != nil {
		return err
	}
	from, err := number(cmp.Or(fields[5], "0"))
	if err != nil {
		return err
	}
	to, err := number(cmp.Or(fields[6], "0"))
	if err != nil {
		return err
	}
	if instances < 1 || from <= 0 || to < from {
		a.skipped++ // it has not ended, or its times are unknown
		return nil
	}
	s := a.by[fields[2]]
	if s == nil {
		if len(a.by) == jobsMax {
			return fmt.Errorf("has more than %d jobs", jobsMax)
		}
		s = &span{from: from, to: to}
		a.by[fields[2]] = s
		a.order = append(a.order, fields[2])
	}
	s.pods, s.from, s.to = s.pods+int(instances), min(s.from, from), max(s.to, to)
	return nil
}

func (a *alibaba) jobs() (out []Job, skipped int) {
	for _, name := range a.order {
		s := a.by[name]
		out = append(out, Job{Arrival: s.from, Pods: s.pods, Duration: s.to - s.from})
	}
	return out, a.skipped
}

// Write writes a trace as CSV.
func (t *Trace) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, header)
	for _, j := range t.Jobs {
		fmt.Fprintf(b, "%s,%d,%s\n", short(j.Arrival), j.Pods, short(j.Duration))
	}
	return b.Flush()
}

func short(x float64) string { return strconv.FormatFloat(math.Round(x*1e3)/1e3, 'f', -1, 64) }

// Pods returns the number of pods of all jobs, and Length the time from the first arrival to the
// last.
func (t *Trace) Pods() (n int) {
	for _, j := range t.Jobs {
		n += j.Pods
	}
	return n
}

// Length returns the time from the first arrival to the last, in seconds.
func (t *Trace) Length() float64 { return t.Jobs[len(t.Jobs)-1].Arrival }

// Most returns the most pods that run at a time, if every job starts when it arrives.
func (t *Trace) Most() (most int) {
	type change struct {
		at float64
		by int
	}
	var changes []change
	for _, j := range t.Jobs {
		changes = append(changes, change{j.Arrival, j.Pods})
		if j.Duration > 0 {
			changes = append(changes, change{j.Arrival + j.Duration, -j.Pods})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	now := 0
	for _, c := range changes {
		now += c.by
		most = max(most, now)
	}
	return most
}
