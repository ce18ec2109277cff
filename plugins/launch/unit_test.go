package launch

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		pool core.Pool
		want string
	}{
		{core.Pool{Addr: "local"}, "tai"},
		{core.Pool{Addr: "tai://host:19100"}, "tai"},
		{core.Pool{Addr: "tunnel://id"}, "tai"},
		{core.Pool{Addr: "docker://"}, "docker"},
		{core.Pool{Addr: "unix:///run/docker.sock"}, "docker"},
		{core.Pool{Addr: "tcp://host:2376"}, "docker"},
		{core.Pool{Addr: "ssh://host"}, "docker"},
		{core.Pool{Addr: "k8s://context"}, "k8s"},
		{core.Pool{Addr: "anything", Plugin: "my-own"}, "my-own"},
	} {
		if got, err := KindOf(c.pool); got != c.want || err != nil {
			t.Errorf("kind of %+v: got %q, %v, want %q", c.pool, got, err, c.want)
		}
	}
}

func TestFind(t *testing.T) {
	good := func(t *testing.T, dir string) { script(t, dir, "x", "exit 0") }
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
		want string // in the error; empty: it is found
	}{
		{"good", good, ""},
		{"symlink to good", func(t *testing.T, dir string) {
			good(t, dir)
			must(t, os.Rename(filepath.Join(dir, "plugin-x"), filepath.Join(dir, "real")))
			must(t, os.Symlink("real", filepath.Join(dir, "plugin-x")))
		}, ""},
		{"missing", func(*testing.T, string) {}, "plugin x is missing"},
		{"dangling symlink", func(t *testing.T, dir string) {
			must(t, os.Symlink("nowhere", filepath.Join(dir, "plugin-x")))
		}, "plugin x is missing"},
		{"folder", func(t *testing.T, dir string) {
			must(t, os.Mkdir(filepath.Join(dir, "plugin-x"), 0o755))
		}, "not an executable file"},
		{"not executable", func(t *testing.T, dir string) {
			good(t, dir)
			must(t, os.Chmod(filepath.Join(dir, "plugin-x"), 0o644))
		}, "not an executable file"},
		{"writable by others", func(t *testing.T, dir string) {
			good(t, dir)
			must(t, os.Chmod(filepath.Join(dir, "plugin-x"), 0o757))
		}, "chmod go-w"},
		{"writable folder", func(t *testing.T, dir string) {
			good(t, dir)
			must(t, os.Chmod(dir, 0o777))
		}, "chmod go-w"},
		{"of another user", func(t *testing.T, dir string) {
			if os.Geteuid() != 0 {
				t.Skip("giving a file away needs root")
			}
			good(t, dir)
			must(t, os.Chown(filepath.Join(dir, "plugin-x"), 12345, -1))
		}, "belongs to user 12345"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			path, err := find(dir, "x")
			switch {
			case c.want == "" && (err != nil || filepath.Dir(path) != dir):
				t.Errorf("find: got %q, %v", path, err)
			case c.want != "" && (!errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("find: got %v, want kind %q with %q", err, core.ErrInvalid, c.want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBackoff(t *testing.T) {
	about := func(got, want time.Duration) bool {
		return got >= time.Duration(float64(want)*(1-delayJitter)) && got <= time.Duration(float64(want)*(1+delayJitter))
	}
	crash := ending{ready: time.Second}
	for _, c := range []struct {
		name    string
		endings []ending
		delay   time.Duration // after the last
		looping bool
	}{
		{"first crash", []ending{crash}, 100 * time.Millisecond, false},
		{"third crash", []ending{crash, crash, crash}, 400 * time.Millisecond, false},
		{"fifth crash", []ending{crash, crash, crash, crash, crash}, 1600 * time.Millisecond, true},
		{"crash after a minute", []ending{crash, crash, crash, crash, crash, {ready: time.Minute}}, 100 * time.Millisecond, false},
		{"killed from outside", []ending{crash, {ready: time.Second, killed: true}}, 100 * time.Millisecond, false},
		{"killed at its start", []ending{{killed: true}, {killed: true}, {killed: true}}, 400 * time.Millisecond, false},
		{"killed on and on", slicesRepeat(ending{ready: time.Second, killed: true}, killsFree+5), 1600 * time.Millisecond, true},
		{"many crashes", slicesRepeat(crash, 100), 30 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b backoff
			var delay time.Duration
			for _, e := range c.endings {
				delay = b.next(e)
			}
			if !about(delay, c.delay) || b.looping() != c.looping {
				t.Errorf("got %s, looping %v, want about %s, %v", delay, b.looping(), c.delay, c.looping)
			}
		})
	}
}

func slicesRepeat(e ending, n int) []ending {
	all := make([]ending, n)
	for i := range all {
		all[i] = e
	}
	return all
}

func TestParseLine(t *testing.T) {
	for _, c := range []struct {
		name, line string
		ok         bool
		level      slog.Level
		msg        string
		attrs      []string
	}{
		{"ours", `{"@timestamp":"2026-01-02T03:04:05.000006Z","@level":"warn","@message":"m","b":1,"a":"x"}`, true, slog.LevelWarn, "m", []string{"a=x", "b=1"}},
		{"message of another type", `{"@level":"info","@message":7}`, false, slog.LevelDebug, `{"@level":"info","@message":7}`, nil},
		{"time of another type", `{"@timestamp":1,"@level":"error","@message":"m"}`, true, slog.LevelError, "m", nil},
		{"no level", `{"@message":"m"}`, false, slog.LevelDebug, `{"@message":"m"}`, nil},
		{"plain", "  hello\t", false, slog.LevelDebug, "hello", nil},
		{"bytes", "a\xffb", false, slog.LevelDebug, "a?b", nil},
		{"json of no object", "[1]", false, slog.LevelDebug, "[1]", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec, ok := parseLine([]byte(c.line))
			var attrs []string
			rec.Attrs(func(a slog.Attr) bool {
				attrs = append(attrs, a.String())
				return true
			})
			if ok != c.ok || rec.Level != c.level || rec.Message != c.msg {
				t.Errorf("parse %q: got %v, %v %q, want %v, %v %q", c.line, ok, rec.Level, rec.Message, c.ok, c.level, c.msg)
			}
			if diff := cmp.Diff(c.attrs, attrs); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"@timestamp":"x","@level":"info","@message":"m","k":{"n":[1]}}`))
	f.Add([]byte("panic: no"))
	f.Fuzz(func(t *testing.T, line []byte) {
		rec, _ := parseLine(line)
		if rec.Time.IsZero() {
			t.Errorf("parse %q: no time", line)
		}
	})
}

func TestTail(t *testing.T) {
	var last tail
	for _, l := range []string{"one", "two", "", "three", "four"} {
		last.add(l)
	}
	if got, want := last.String(), "two | three | four"; got != want {
		t.Errorf("tail: got %q, want %q", got, want)
	}
	last.add("panic: oops")
	last.add("goroutine 1 [running]:")
	if got, want := last.String(), "panic: oops"; got != want {
		t.Errorf("tail after a crash: got %q, want %q", got, want)
	}
}
