// Package fusetest mounts volumes for tests. The mount process and the volume
// server are children of the test, made by running the test binary again, so
// nothing in the test can dead-lock on the mount, and either can be killed.
// Main, called from TestMain, is what the children run; whatever happens to
// them, the test process takes the mounts away at its end.
package fusetest

import (
	"bufio"
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
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
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
	Role       string // volume, mountd, starter
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
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
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
	if c.Role == "starter" {
		return c.startVolumes()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	log := logging.Text(os.Stderr, slog.LevelError)
	if c.Role == "mountd" {
		return mountd.Run(ctx, mountd.Config{Socket: c.Socket, FDSocket: c.FDSocket, Root: c.Root,
			AllowOther: c.AllowOther, Log: log, Version: "test"})
	}
	return c.serveVolume(ctx, log)
}

// startVolumes starts and kills the volume server for the test, one order a line.
// The test itself must not: a fork closes its files on the mount in the child,
// which waits for the server that is not started yet.
func (c child) startVolumes() error {
	var cmd *exec.Cmd
	defer func() { kill(cmd) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var err error
		switch in.Text() {
		case "start":
			_ = os.Remove(c.Socket)
			v := c
			v.Role = "volume"
			cmd, err = start(v, nil, 0)
		case "kill":
			kill(cmd)
		case "stop":
			err = cmd.Process.Signal(unix.SIGSTOP)
		case "cont":
			err = cmd.Process.Signal(unix.SIGCONT)
		}
		if _, perr := fmt.Println(err); perr != nil {
			return perr
		}
	}
	return nil
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
	if err := os.Chmod(c.Socket, 0o666); err != nil {
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
	// User runs the mount process as another user, by fusermount3.
	User uint32
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

	starter *exec.Cmd
	orders  io.Writer
	answers *bufio.Scanner
	pipes   []io.Closer
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
	for _, d := range []string{m.Dir, m.Root()} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{base, m.Root()} {
		if err := os.Chown(d, int(o.User), int(o.User)); err != nil {
			t.Fatal(err)
		}
	}
	m.startStarter()
	m.StartVolume()
	m.StartMountd()
	m.Attach()
	return m
}

// Root is the directory of all mounts.
func (m *Mount) Root() string { return filepath.Join(m.base, "mnt") }

func (m *Mount) sock(name string) string { return filepath.Join(m.base, name) }

// Endpoint is where the volume is served.
func (m *Mount) Endpoint() core.Endpoint {
	return core.Endpoint{Kind: core.EndpointUnix, Address: m.sock("vol.sock"), Session: "v"}
}

// StartVolume starts the volume server and waits until it listens.
func (m *Mount) StartVolume() {
	m.t.Helper()
	m.order("start")
	Eventually(m.t, 20*time.Second, "volume server listens", func() bool {
		c, err := net.Dial("unix", m.sock("vol.sock"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// KillVolume ends the volume server by SIGKILL.
func (m *Mount) KillVolume() { m.order("kill") }

// StopVolume makes the volume server stand still, ContinueVolume go on.
func (m *Mount) StopVolume() { m.order("stop") }

// ContinueVolume is the reverse of StopVolume.
func (m *Mount) ContinueVolume() { m.order("cont") }

func (m *Mount) order(what string) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.orders, what); err != nil {
		m.t.Fatal(err)
	}
	if !m.answers.Scan() || m.answers.Text() != "<nil>" {
		m.t.Fatalf("volume server, %s: %s %v", what, m.answers.Text(), m.answers.Err())
	}
}

// startStarter starts the process that starts volume servers.
func (m *Mount) startStarter() {
	m.t.Helper()
	in, orders, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	answers, out, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	m.orders, m.answers = orders, bufio.NewScanner(answers)
	m.pipes = []io.Closer{orders, answers}
	cmd := command(child{Role: "starter", Socket: m.sock("vol.sock"), Dir: m.Dir, EventDelay: m.o.EventDelay}, m.o.Env)
	cmd.Stdin, cmd.Stdout = in, out
	err = cmd.Start()
	_ = errors.Join(in.Close(), out.Close())
	if err != nil {
		m.t.Fatal(err)
	}
	m.starter = cmd
}

// StartMountd starts the mount process and connects to it.
func (m *Mount) StartMountd() {
	m.t.Helper()
	var err error
	m.mountd, err = start(child{Role: "mountd", Socket: m.sock("m.sock"), FDSocket: m.sock("f.sock"),
		Root: m.Root(), AllowOther: m.o.AllowOther}, m.o.Env, m.o.User)
	if err != nil {
		m.t.Fatal(err)
	}
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

// command runs this binary as a child.
func command(c child, env []string) *exec.Cmd {
	spec, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), env...), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	return cmd
}

func start(c child, env []string, user uint32) (*exec.Cmd, error) {
	cmd := command(c, env)
	if user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	// The other end is ours alone and never written to: the child ends with us.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return cmd, cmd.Start()
}

// KillMountd ends the mount process by SIGKILL.
func (m *Mount) KillMountd() { kill(m.mountd) }

func kill(cmd *exec.Cmd) {
	if cmd != nil && cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (m *Mount) close() {
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
	for _, p := range m.pipes {
		_ = p.Close()
	}
	if m.starter != nil { // the volume server ends with it, and it with the pipe
		if err := wait(m.starter, 10*time.Second); err != nil {
			m.t.Errorf("starter of volume servers: %v", err)
		}
	}
	if left := Sweep(m.Root()); len(left) > 0 && !m.t.Failed() {
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
