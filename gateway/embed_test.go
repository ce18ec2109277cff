package gateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/mountd"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/workspace"
)

// TestMain is also the mount process of the gateways under test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "mountd" {
		os.Exit(runMountd(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

func runMountd(args []string) int {
	var c mountd.Config
	f := flag.NewFlagSet("mountd", flag.ContinueOnError)
	f.StringVar(&c.Socket, "socket", "", "")
	f.StringVar(&c.FDSocket, "fd-socket", "", "")
	f.StringVar(&c.Root, "root", "", "")
	f.BoolVar(&c.AllowOther, "allow-other", false, "")
	if err := f.Parse(args); err != nil {
		return 2
	}
	c.Log = logging.Text(os.Stderr, slog.LevelInfo)
	if err := mountd.Run(context.Background(), c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// plugins builds the plugin and the node into a folder.
func plugins(t *testing.T, dir string) {
	t.Helper()
	for out, pkg := range map[string]string{"plugins/plugin-tai": "cmd/plugin-tai", "tai": "cmd/tai"} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, out), "../"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
	}
}

func needMachine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make containers and mounts")
	}
	if err := checkFUSE(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skipf("needs an OCI runtime: %v", err)
	}
}

// embedded is a gateway in this process, with its own directories.
func embedded(t *testing.T, o Options) *Gateway {
	t.Helper()
	g, err := Embed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a test that went well has ended it
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := g.Shutdown(ctx); err != nil && !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("clean up: %v", err)
		}
		g.Close()
	})
	return g
}

func options(t *testing.T) Options {
	t.Helper()
	dir := shortDir(t)
	plugins(t, dir)
	c := DefaultConfig()
	c.Gateway.Listen = "unix://" + filepath.Join(dir, "g.sock")
	c.Gateway.StateDir, c.Mount.Root = filepath.Join(dir, "s"), filepath.Join(dir, "m")
	c.Plugins.Dir = filepath.Join(dir, "plugins")
	return Options{Config: c, Log: logging.Text(t.Output(), slog.LevelInfo)}
}

// TestEmbed is the main job as a library, over a restart of the gateway, with
// files served by the node, by the mount process, and without FUSE.
func TestEmbed(t *testing.T) {
	needMachine(t)
	direct := map[string]any{"direct": true}
	for name, test := range map[string]struct {
		change func(*Config)
		fuse   bool
	}{
		"node":            {func(*Config) {}, true},
		"local directory": {func(c *Config) { c.Pools[0].Options = direct }, true},
		"bind mount": {func(c *Config) {
			c.Pools[0].Options, c.Mount.Symlinks, c.Mount.Owner = direct, "raw", "none"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			test.change(&o.Config)
			testMainJob(t, o, test.fuse)
		})
	}
}

func testMainJob(t *testing.T, o Options, fuse bool) {
	t.Helper()
	g := embedded(t, o)
	ctx := t.Context()
	ws, err := g.Manager().CreateWorkspace(ctx, workspace.Options{ID: "w1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Manager().Create(ctx, core.CreateOptions{ID: "b1", Image: "host", WorkspaceID: string(ws.ID)}); err != nil {
		t.Fatal(err)
	}
	path, ok := g.Manager().Path("b1")
	if !ok {
		t.Fatal("the box has no path")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || (st.Type == unix.FUSE_SUPER_MAGIC) != fuse {
		t.Errorf("%s is of type %#x, %v; want FUSE: %t", path, st.Type, err, fuse)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(path, "away")); err != nil {
		t.Error(err)
	}
	if _, err := os.Open(filepath.Join(path, "away")); errors.Is(err, unix.EPERM) != fuse {
		t.Errorf("following a link out of the workspace: %v; want it contained: %t", err, fuse)
	}
	write(t, filepath.Join(path, "in.txt"), "from outside")
	if got := execIn(t, g, "cat in.txt; printf 'from inside' > out.txt"); got != "from outside" {
		t.Errorf("the box read %q, want %q", got, "from outside")
	}
	if got := read(t, filepath.Join(path, "out.txt")); got != "from inside" {
		t.Errorf("the mount shows %q, want %q", got, "from inside")
	}
	f := mustGet(t, g).Workspace()
	if data, err := f.ReadFile("out.txt"); err != nil || string(data) != "from inside" {
		t.Errorf("workspace.FS has %q, %v", data, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}

	// Boxes and mounts outlive the gateway; the next one finds them.
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path, "between.txt"), "between")
	g = embedded(t, o)
	if got := execIn(t, g, "cat between.txt"); got != "between" {
		t.Errorf("after a restart the box read %q, want %q", got, "between")
	}

	stopped, err := g.Shutdown(ctx)
	if err != nil || len(stopped) != 1 || stopped[0] != "b1" {
		t.Errorf("Shutdown: got %v, %v, want [b1]", stopped, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	leftNothing(t, o.Config)
}

// TestMountdIsReplaced: files are back by themselves after the mount process was
// killed.
func TestMountdIsReplaced(t *testing.T) {
	needMachine(t)
	o := options(t)
	g := embedded(t, o)
	if _, err := g.Manager().CreateWorkspace(t.Context(), workspace.Options{ID: "w1"}); err != nil {
		t.Fatal(err)
	}
	path, _ := g.Manager().Path("w1")
	write(t, filepath.Join(path, "f"), "kept")
	old := g.mounts.pid()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		data, err := os.ReadFile(filepath.Join(path, "f"))
		if err == nil && string(data) == "kept" && g.mounts.pid() != old {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the mount is not back: %q, %v", data, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := g.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	g.Close()
	leftNothing(t, o.Config)
}

// TestAPI goes through the socket and the Go client.
func TestAPI(t *testing.T) {
	needMachine(t)
	o := options(t)
	g := embedded(t, o)
	c, err := client.Dial(o.Config.Gateway.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	b, err := c.GetOrCreate(ctx, core.CreateOptions{ID: "b1", Image: "host", Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Exec(ctx, []string{"sh", "-c", "cat; echo err >&2; exit 3"}, client.ExecOptions{Stdin: []byte("in")})
	if err != nil || r.ExitCode != 3 || r.Stdout != "in" || r.Stderr != "err\n" {
		t.Errorf("Exec: got %+v, %v", r, err)
	}
	if _, err := b.Exec(ctx, []string{"sleep", "60"}, client.ExecOptions{Timeout: 200 * time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec over its time: got %v, want DeadlineExceeded", err)
	}
	s, err := b.Stream(ctx, []string{"cat"}, client.ExecOptions{OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Cancel()
	if code, err := s.Wait(); code != 128+9 || err != nil {
		t.Errorf("Stream after Cancel: got %d, %v, want 137", code, err)
	}
	s.Stdout.Close()
	s.Stderr.Close()
	kinds := []struct {
		name string
		do   func() error
		want error
	}{
		{"unknown box", func() error { _, err := c.Get(ctx, "nosuch"); return err }, core.ErrNotFound},
		{"name with a slash", func() error { _, err := c.Get(ctx, "a/b"); return err }, core.ErrInvalid},
		{"taken id", func() error { _, err := c.Create(ctx, core.CreateOptions{ID: "b1", Image: "host"}); return err }, core.ErrConflict},
		{"unknown pool", func() error { _, err := c.Create(ctx, core.CreateOptions{Pool: "x", Image: "host"}); return err }, core.ErrPoolNotFound},
		{"unknown path", func() error { _, err := c.Path(ctx, "nosuch"); return err }, core.ErrNotFound},
		{"empty command", func() error { _, err := b.Exec(ctx, nil, client.ExecOptions{}); return err }, core.ErrInvalid},
		{"unknown image", func() error { _, err := c.Create(ctx, core.CreateOptions{Image: "x"}); return err }, core.ErrUnsupported},
	}
	for _, k := range kinds {
		if err := k.do(); !errors.Is(err, k.want) {
			t.Errorf("%s: got %v, want %v", k.name, err, k.want)
		}
	}
	if list, err := c.List(ctx, core.ListOptions{Labels: map[string]string{"a": "b"}}); err != nil || len(list) != 1 {
		t.Errorf("List by label: got %v, %v, want one", list, err)
	}
	if stopped, err := c.Shutdown(ctx, true); err != nil || len(stopped) != 1 {
		t.Errorf("Shutdown: got %v, %v, want one box", stopped, err)
	}
	select {
	case <-g.Told():
	case <-time.After(10 * time.Second):
		t.Error("the gateway was not told to end")
	}
	g.Close()
	leftNothing(t, o.Config)
}

func mustGet(t *testing.T, g *Gateway) *core.Box {
	t.Helper()
	b, err := g.Manager().Get(t.Context(), "b1")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func execIn(t *testing.T, g *Gateway, script string) string {
	t.Helper()
	r, err := mustGet(t, g).Exec(t.Context(), []string{"sh", "-c", script})
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("exec %q: %+v, %v", script, r, err)
	}
	return r.Stdout
}

// leftNothing looks for mounts, processes and sockets of a gateway that ended.
func leftNothing(t *testing.T, c Config) {
	t.Helper()
	dir := filepath.Dir(c.Gateway.StateDir)
	if data, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(data), dir) {
		t.Errorf("mounts are left (%v):\n%s", err, data)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), dir) {
			t.Errorf("a process is left: %q", data)
		}
	}
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			t.Errorf("a socket is left: %s", path)
		}
		return nil
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
