// Package logging has the attribute vocabulary of our logs and the handlers that
// processes of ours start with. Loggers are passed in, never global.
package logging

import (
	"io"
	"log/slog"
)

// Attribute keys. Every log line names things by these.
const (
	Box       = "box"
	Pool      = "pool"
	Workspace = "workspace"
	Plugin    = "plugin"
	Node      = "node"
	PID       = "pid"
	Path      = "path"
	Addr      = "addr"
	Err       = "err"
	Duration  = "duration"
	Reason    = "reason"
	Version   = "version"
)

// Text returns a logger of human-readable lines on w.
func Text(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// OrDiscard returns a logger that drops everything, or l if it is one.
func OrDiscard(l *slog.Logger) *slog.Logger {
	if l != nil {
		return l
	}
	return slog.New(slog.DiscardHandler)
}

// ForPlugin returns the logger of a plugin process: JSON lines on w that go-plugin
// hands on with level and attributes intact. Its parser needs time, level and
// message as strings under these names and hclog's time layout.
func ForPlugin(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: hclogNames}))
}

func hclogNames(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String()) // JSON has it in nanoseconds
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.String("@timestamp", a.Value.Time().Format("2006-01-02T15:04:05.000000Z07:00"))
	case slog.LevelKey:
		return slog.String("@level", hclogLevel(a.Value.Any().(slog.Level)))
	case slog.MessageKey:
		return slog.String("@message", a.Value.String())
	}
	return a
}

func hclogLevel(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warn"
	case l >= slog.LevelInfo:
		return "info"
	}
	return "debug"
}
