// Package fusetest mounts volumes for tests. The mount process and the volume
// server are children of the test, made by running the test binary again, so
// nothing in the test can dead-lock on the mount, and either can be killed.
// Main, called from TestMain, is what the children run; whatever happens to
// them, the test process takes the mounts away at its end.
package fusetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/mountd"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/volume"
)

// childEnv has what a child is to do.
const childEnv = "SBGW_FUSETEST_CHILD"

// child is what a child is told.
type child struct {
	Role       string // volume, mountd
	Socket     string
	FDSocket   string
	Root       string
	Dir        string
	EventDelay time.Duration
	AllowOther bool
}

// Main runs the tests, or what this process is a child for.
func Main(m *testing.M) {
	spec := os.Getenv(childEnv)
	if spec == "" {
		os.Exit(m.Run())
	}
	var c child
	err := json.Unmarshal([]byte(spec), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, c.Role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run returns when standard input ends, that is with the test.
func (c child) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	log := logging.Text(os.Stderr, slog.LevelWarn)
	if c.Role == "mountd" {
		return mountd.Run(ctx, mountd.Config{Socket: c.Socket, FDSocket: c.FDSocket, Root: c.Root,
			AllowOther: c.AllowOther, Log: log, Version: "test"})
	}
	return c.serveVolume(ctx, log)
}

func (c child) serveVolume(ctx context.Context, log *slog.Logger) error {
	s := volume.NewServer(volume.ServerOptions{
		Dir:        func(string, []byte) (string, error) { return c.Dir, nil },
		Log:        log,
		EventDelay: c.EventDelay,
	})
	srv := grpc.NewServer(volume.Tuning()...)
	s.Register(srv)
	_ = os.Remove(c.Socket)
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, srv.Stop)
	return srv.Serve(l)
}

// Options are the settings of a Mount.
type Options struct {
	Symlinks   string // default raw
	Owner      string // default none
	UID, GID   int
	EventDelay time.Duration
	AllowOther bool
	// Env is added to the environment of the children.
	Env []string
}

// Mount is a mounted volume.
type Mount struct {
	// Dir is the volume's directory, Path where it is mounted.
	Dir, Path string
	Client    *mountd.Client

	t      testing.TB
	o      Options
	base   string
	mountd *exec.Cmd
	volume *exec.Cmd
}

// Workspace is the name of the mounted volume.
const Workspace = "ws"

// New mounts a fresh directory and takes everything away at the test's end. It
// skips where the machine has no FUSE for us.
func New(t testing.TB, o Options) *Mount {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	if o.Symlinks == "" {
		o.Symlinks = "raw"
	}
	if o.Owner == "" {
		o.Owner = "none"
	}
	base, err := os.MkdirTemp("", "sbf")
	if err != nil {
		t.Fatal(err)
	}
	m := &Mount{Dir: filepath.Join(base, "dir"), t: t, o: o, base: base}
	t.Cleanup(m.close)
	for _, d := range []string{m.Dir, m.root()} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	m.StartVolume()
	m.StartMountd()
	m.Attach()
	return m
}

func (m *Mount) root() string { return filepath.Join(m.base, "mnt") }

func (m *Mount) sock(name string) string { return filepath.Join(m.base, name) }

// Endpoint is where the volume is served.
func (m *Mount) Endpoint() core.Endpoint {
	return core.Endpoint{Kind: core.EndpointUnix, Address: m.sock("vol.sock"), Session: "v"}
}

// StartVolume starts the volume server and waits until it listens.
func (m *Mount) StartVolume() {
	m.t.Helper()
	_ = os.Remove(m.sock("vol.sock"))
	m.volume = m.start(child{Role: "volume", Socket: m.sock("vol.sock"), Dir: m.Dir, EventDelay: m.o.EventDelay})
	Eventually(m.t, 20*time.Second, "volume server listens", func() bool {
		c, err := net.Dial("unix", m.sock("vol.sock"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// StartMountd starts the mount process and connects to it.
func (m *Mount) StartMountd() {
	m.t.Helper()
	m.mountd = m.start(child{Role: "mountd", Socket: m.sock("m.sock"), FDSocket: m.sock("f.sock"),
		Root: m.root(), AllowOther: m.o.AllowOther})
	Eventually(m.t, 20*time.Second, "mount process answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := mountd.Connect(ctx, m.sock("m.sock"), m.sock("f.sock"))
		if err == nil {
			m.Client = c
		}
		return err == nil
	})
}

// Attach mounts the volume.
func (m *Mount) Attach() {
	m.t.Helper()
	path, err := m.Client.Attach(m.t.Context(), Workspace, m.Endpoint(), core.MountOptions{
		Symlinks: m.o.Symlinks, Owner: m.o.Owner, UID: m.o.UID, GID: m.o.GID})
	if err != nil {
		m.t.Fatalf("attach: %v", err)
	}
	m.Path = path
}

func (m *Mount) start(c child) *exec.Cmd {
	m.t.Helper()
	spec, err := json.Marshal(c)
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), m.o.Env...), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	// The other end is ours alone and never written to: the child ends with us.
	if _, err := cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	return cmd
}

// KillVolume ends the volume server by SIGKILL.
func (m *Mount) KillVolume() { kill(m.volume) }

// KillMountd ends the mount process by SIGKILL.
func (m *Mount) KillMountd() { kill(m.mountd) }

func kill(cmd *exec.Cmd) {
	if cmd != nil && cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// Signal sends a signal to the volume server.
func (m *Mount) Signal(s os.Signal) {
	if err := m.volume.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Mount) close() {
	if m.volume != nil && m.volume.ProcessState == nil {
		_ = m.volume.Process.Signal(unix.SIGCONT)
	}
	if m.Client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := m.Client.Shutdown(ctx); err == nil {
			if err := wait(m.mountd, 20*time.Second); err != nil {
				m.t.Errorf("mount process: %v", err)
			}
		}
		_ = m.Client.Close()
	}
	kill(m.mountd)
	kill(m.volume)
	if left := Sweep(m.root()); len(left) > 0 && !m.t.Failed() {
		m.t.Errorf("mounts left behind: %v", left)
	}
	if err := os.RemoveAll(m.base); err != nil {
		m.t.Errorf("remove the test's files: %v", err)
	}
}

func wait(cmd *exec.Cmd, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		<-done
		return errors.New("did not end in time")
	}
}

// Sweep aborts and detaches every mount below a directory, without touching its
// path, and returns which there were.
func Sweep(root string) []string {
	var left []string
	for range 100 {
		path, conn := mountBelow(root)
		if path == "" {
			return left
		}
		left = append(left, path)
		_ = os.WriteFile(filepath.Join("/sys/fs/fuse/connections", conn, "abort"), []byte("1"), 0)
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return left
		}
	}
	return left
}

// mountBelow reads proc_pid_mountinfo(5).
func mountBelow(root string) (path, conn string) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], root+"/") {
			_, minor, _ := strings.Cut(f[2], ":")
			if _, err := strconv.Atoi(minor); err == nil {
				return f[4], minor
			}
		}
	}
	return "", ""
}

// Eventually polls until ok or fails the test.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(time.Millisecond) // the pause between two looks
	}
}
