package observe

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// EventsFile is the name of the file with a run's events: a CSV, compressed with gzip.
const EventsFile = "events.csv.gz"

// eventColumns are the columns of a file of events, which are the fields of analyse.Event.
var eventColumns = []string{
	"time", "received", "actor", "verb", "resource", "subresource", "namespace", "name", "node", "ended", "code", "cause",
}

// EventsHeader is the first line of a file of events.
var EventsHeader = strings.Join(eventColumns, ",")

// Save writes the events into a file.
func (l *Log) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	return errors.Join(WriteEvents(z, l.Events), z.Close(), f.Close())
}

// WriteEvents writes events as a CSV.
func WriteEvents(w io.Writer, events []analyse.Event) error {
	out := csv.NewWriter(w)
	if err := out.Write(eventColumns); err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		err := out.Write([]string{
			e.Time.Format(time.RFC3339Nano), e.Received.Format(time.RFC3339Nano), e.Actor, e.Verb, e.Resource, e.Sub, e.Namespace, e.Name,
			e.Node, strconv.FormatBool(e.Ended), strconv.Itoa(e.Code), e.Cause,
		})
		if err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// ReadEvents reads what WriteEvents wrote. Its errors name the line.
func ReadEvents(r io.Reader) (events []analyse.Event, err error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord, in.ReuseRecord = len(eventColumns), true
	header, err := in.Read()
	if err == nil && !slices.Equal(header, eventColumns) {
		err = fmt.Errorf("line 1: the columns are not %s", EventsHeader)
	}
	for err == nil {
		var row []string
		if row, err = in.Read(); err != nil {
			break
		}
		e := analyse.Event{Actor: row[2], Verb: row[3], Resource: row[4], Sub: row[5], Namespace: row[6], Name: row[7], Node: row[8], Cause: row[11]}
		var errs [4]error
		e.Time, errs[0] = time.Parse(time.RFC3339Nano, row[0])
		e.Received, errs[1] = time.Parse(time.RFC3339Nano, row[1])
		e.Ended, errs[2] = strconv.ParseBool(row[9])
		e.Code, errs[3] = strconv.Atoi(row[10])
		if err = errors.Join(errs[:]...); err != nil {
			line, _ := in.FieldPos(0)
			err = fmt.Errorf("line %d: %w", line, err)
		}
		events = append(events, e)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return events, err
}
