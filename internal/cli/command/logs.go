package command

import (
	"fmt"
	"hash/fnv"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/submit/workflows"
)

// LogFlags holds the flags of verbs that print logs of pods.
type LogFlags struct {
	workflows.LogOptions
	grep, sinceTime string
	tail            int64
}

// Add adds the flags. follow and previous are the usage texts of --follow and --previous.
func (l *LogFlags) Add(cmd *cobra.Command, follow, previous string) {
	f := cmd.Flags()
	f.BoolVarP(&l.Follow, "follow", "f", false, follow)
	f.BoolVarP(&l.Previous, "previous", "p", false, previous)
	f.BoolVar(&l.Timestamps, "timestamps", false, "put its time before each line")
	f.DurationVar(&l.Since, "since", 0, "only lines at most this old")
	f.StringVar(&l.sinceTime, "since-time", "", "only lines after this time (RFC 3339)")
	f.Int64Var(&l.tail, "tail", -1, "only this many last lines of each pod; -1 is all")
	f.StringVar(&l.grep, "grep", "", "only lines that match this regular expression")
}

// Complete sets the options from the flags.
func (l *LogFlags) Complete() (err error) {
	if l.tail >= 0 {
		l.TailLines = &l.tail
	}
	if l.sinceTime != "" {
		t, err := time.Parse(time.RFC3339, l.sinceTime)
		if err != nil {
			return Usagef("--since-time=%s: want a time such as 2030-01-02T15:04:05Z", l.sinceTime)
		}
		l.SinceTime = &t
	}
	if l.grep == "" {
		return nil
	}
	if l.Grep, err = regexp.Compile(l.grep); err != nil {
		return Usagef("--grep: %w", err)
	}
	return nil
}

// podColors are the colours of pods' names. A hash of the name chooses one.
var podColors = []string{"31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96"}

// LogLine returns a function that prints a log line after its pod's name.
func LogLine(out io.Writer, color bool) func(workflows.Line) {
	color = color && Colors(out)
	return func(l workflows.Line) {
		pod := l.Pod
		if color {
			h := fnv.New32a()
			h.Write([]byte(pod))
			pod = "\x1b[" + podColors[h.Sum32()%uint32(len(podColors))] + "m" + pod + "\x1b[0m"
		}
		fmt.Fprintf(out, "%s: %s\n", pod, strings.TrimRight(l.Text, "\r"))
	}
}
