package launch

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
)

func TestForeignPlugins(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"exits", "echo not today >&2; exit 3", "exit status 3; its last words: not today"},
		{"prints garbage", "echo hello world; sleep 60", `"hello world"`},
		{"prints endless garbage", "exec yes | tr -d '\\n'", "not a plugin of this gateway"},
		{"floods its log and exits", "yes line | head -n 100000 >&2; exit 1", "line | line"},
		{"hangs", "exec sleep 60", "said nothing within 2s"},
		{"closes its output", "exec >&- 2>&-; exec sleep 60", "closed its output"},
		{"speaks another protocol", `echo "1|99|unix|/tmp/x|grpc"; sleep 60`, "incompatible API version"},
		{"is of another kind", "", `kind "fake", not "bad"`},
		{"is no program", "\x00", "can't be run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := fakeDir(t, "bad")
			if c.body == "\x00" {
				if err := os.WriteFile(filepath.Join(dir, "plugin-bad"), []byte("\x7fELF no"), 0o755); err != nil {
					t.Fatal(err)
				}
			} else if c.body != "" {
				script(t, dir, "bad", c.body)
			}
			l := launcher(t, Options{Dir: dir, startTimeout: 2 * time.Second})
			cfg, err := l.config(core.Pool{Name: "p", Addr: "x"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.add("bad", cfg); err != nil { // Open, but for the wait
				t.Fatal(err)
			}
			eventually(t, "an outcome", 30*time.Second, func() bool { return l.Plugins()[0].Reason != "" })
			if err := l.Ready("p"); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ready: got %v, want kind %q with %q", err, core.ErrUnavailable, c.want)
			}
		})
	}
}

func TestCrashLoop(t *testing.T) {
	dir := fakeDir(t)
	script(t, dir, "fake", "echo 'panic: all is lost' >&2; echo goroutine 1 >&2; exit 2")
	l := launcher(t, Options{Dir: dir})
	b := open(t, l, "p")
	eventually(t, "the crash loop", 30*time.Second, func() bool { return l.Plugins()[0].State == CrashLoop })
	began := time.Now()
	_, err := b.List(t.Context())
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "panic: all is lost") {
		t.Errorf("call: got %v, want kind %q with the crash", err, core.ErrUnavailable)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("call in a crash loop took %s, want an answer at once", took)
	}
	// A plugin put right is found by the slow retries.
	good := fakeDir(t, "fake")
	if err := os.Rename(filepath.Join(good, "plugin-fake"), filepath.Join(dir, "plugin-fake")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", 30*time.Second, func() bool { return l.Ready("p") == nil })
	if _, err := b.List(t.Context()); err != nil {
		t.Errorf("call after recovery: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := fakeDir(t, "fake")
	for _, c := range []struct {
		name string
		pool core.Pool
		want string
	}{
		{"unknown address", core.Pool{Name: "p", Addr: "gopher://x"}, "no plugin is known for address"},
		{"kind with a path", core.Pool{Name: "p", Plugin: "../fake"}, "not the name of a kind"},
		{"missing binary", core.Pool{Name: "p", Addr: "docker://"}, "plugin docker is missing"},
		{"unknown option", core.Pool{Name: "p", Plugin: "fake", Options: map[string]any{"colour": 1}}, "colour"},
		{"pool name with a path", core.Pool{Name: "../p", Plugin: "fake"}, "name of a folder"},
		{"no pool name", core.Pool{Plugin: "fake"}, "name of a folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := launcher(t, Options{Dir: dir})
			_, err := l.Open(t.Context(), c.pool)
			if !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("open: got %v, want kind %q with %q", err, core.ErrInvalid, c.want)
			}
			if states := l.Plugins(); len(states) > 0 {
				t.Errorf("plugins left: %+v", states)
			}
		})
	}
}

// TestBrokenPool: one pool that can't be opened is no harm to another of the same
// plugin.
func TestBrokenPool(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	p := fakePool("broken")
	p.Options = map[string]any{"broken": "the engine is off"}
	b, err := l.Open(t.Context(), p)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	open(t, l, "good")
	if err := l.Ready("good"); err != nil {
		t.Errorf("the good pool: %v", err)
	}
	if err := l.Ready("broken"); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "the engine is off") {
		t.Errorf("the broken pool: got %v", err)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("call to the broken pool: got %v, want kind %q", err, core.ErrUnavailable)
	}
}

func TestOpenTwice(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	if a, b := open(t, l, "p"), open(t, l, "p"); a != b {
		t.Error("the same pool opened twice gave two backends")
	}
	other := fakePool("p")
	other.Addr = "there"
	if _, err := l.Open(t.Context(), other); !errors.Is(err, core.ErrConflict) {
		t.Errorf("open with other settings: got %v, want kind %q", err, core.ErrConflict)
	}
}

func TestClosePool(t *testing.T) {
	l := launcher(t, Options{Dir: fakeDir(t, "fake")})
	b, other := open(t, l, "p"), open(t, l, "q")
	create(t, b, "box")
	if err := l.Close(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("call to a closed pool: got %v, want kind %q", err, core.ErrNotAvailable)
	}
	if _, err := other.List(t.Context()); err != nil {
		t.Errorf("call to the other pool: %v", err)
	}
	pid := l.Plugins()[0].PID
	if err := l.Close(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	if running(pid) || len(l.Plugins()) > 0 {
		t.Errorf("after the last pool was closed: %+v", l.Plugins())
	}
	if states, err := open(t, l, "p").List(t.Context()); err != nil || len(states) != 1 {
		t.Errorf("boxes of a pool opened again: got %+v, %v", states, err)
	}
}

func TestPluginLogs(t *testing.T) {
	var out bytes.Buffer
	l := launcher(t, Options{Dir: fakeDir(t, "fake"), Log: logging.Text(&out, slog.LevelInfo)})
	open(t, l, "p")
	l.Shutdown()
	want := `level=INFO msg="fake plugin starts" plugin=fake answer=42`
	if !strings.Contains(out.String(), want) {
		t.Errorf("log: got\n%s\nwant a line with\n%s", out.String(), want)
	}
}
