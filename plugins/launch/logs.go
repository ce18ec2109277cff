package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// go-plugin has a parser for the log lines of plugins, which asserts that three
// fields are strings and panics in the gateway's process when a plugin says
// otherwise. So lines are read here.

// maxLogLine bounds a line; the rest of a longer one is dropped.
const maxLogLine = 64 << 10

// readLogs hands every line of a plugin's standard error on to log, and keeps
// the last ones in t, until r ends.
func readLogs(r io.Reader, log *slog.Logger, t *tail) {
	br := bufio.NewReaderSize(r, maxLogLine)
	crashing := false
	rest := false // within a line that was too long
	for {
		line, more, err := br.ReadLine()
		if err != nil {
			return
		}
		if rest {
			rest = more
			continue
		}
		rest = more
		rec, ok := parseLine(line)
		if !ok {
			crashing = crashing || isCrash(rec.Message)
			if crashing {
				rec.Level = slog.LevelError
			}
		}
		t.add(rec.Message)
		if log.Enabled(context.Background(), rec.Level) {
			log.Handler().Handle(context.Background(), rec)
		}
	}
}

// isCrash tells the first line of what the Go runtime prints before it dies.
func isCrash(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
}

// parseLine makes a log record of a line. One that is not in the form of
// logging.ForPlugin becomes the message of a debug record, and ok is false.
func parseLine(line []byte) (rec slog.Record, ok bool) {
	plain := slog.NewRecord(time.Now(), slog.LevelDebug, strings.TrimSpace(strings.ToValidUTF8(string(line), "?")), 0)
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return plain, false
	}
	msg, isText := fields["@message"].(string)
	level, known := levelOf(fields["@level"])
	if !isText || !known {
		return plain, false
	}
	rec = slog.NewRecord(timeOf(fields["@timestamp"]), level, msg, 0)
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if !strings.HasPrefix(k, "@") {
			rec.AddAttrs(slog.Any(k, fields[k]))
		}
	}
	return rec, true
}

func levelOf(v any) (slog.Level, bool) {
	switch v {
	case "error":
		return slog.LevelError, true
	case "warn":
		return slog.LevelWarn, true
	case "info":
		return slog.LevelInfo, true
	case "debug", "trace":
		return slog.LevelDebug, true
	}
	return 0, false
}

// timeOf falls back to now: a record with a wrong time is better than none.
func timeOf(v any) time.Time {
	s, _ := v.(string)
	t, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", s)
	if err != nil {
		return time.Now()
	}
	return t
}

// What a tail keeps: enough to say why a process ended.
const (
	tailLines = 3
	tailWidth = 200
)

// tail keeps the last lines of a stream, and the first one of a crash.
type tail struct {
	mu    sync.Mutex
	crash string
	lines []string
}

func (t *tail) add(line string) {
	if line == "" {
		return
	}
	if len(line) > tailWidth {
		line = strings.ToValidUTF8(line[:tailWidth], "") + "…"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.crash == "" && isCrash(line) {
		t.crash = line
	}
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
}

// String is one line: the crash if there was one, else the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.crash != "" {
		return t.crash
	}
	return strings.Join(t.lines, " | ")
}
