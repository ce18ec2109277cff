// Package rig runs a whole gateway for a test: the real processes, built with
// the race detector, in a short directory of their own under /tmp. When the test
// ends, the gateway is stopped as a user would stop it, and what it leaves behind
// (processes, mounts, sockets, race reports) fails the test.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/client"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

// Budgets. Everything runs with the race detector, perhaps on two busy cores.
const (
	readyIn   = 60 * time.Second
	commandIn = 60 * time.Second
	downIn    = 60 * time.Second
)

// bin has the binaries under test: sbgw, tai and plugins/.
const bin = "bin/race"

// quickExit keeps the race detector from waiting a second at each exit.
const quickExit = "GORACE=atexit_sleep_ms=0"

// Rig is one gateway with its own state directory, mount root and socket.
type Rig struct {
	// Dir holds everything; Root is the mount root in it.
	Dir, Root string
	// Config is the configuration file.
	Config string
	// Addr is the API's address.
	Addr string

	sbgw  string
	log   *os.File
	serve *exec.Cmd
	ended chan struct{} // closed when serve has ended
}

// Need skips the test on a machine that can't run boxes, and says why.
func Need(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make containers and mounts")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("needs FUSE: %v", err)
	} else {
		f.Close()
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skipf("needs an OCI runtime: %v", err)
	}
}

// built compiles the binaries once in a test process.
var built = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	for _, step := range [][]string{{bin + "/", "./cmd/sbgw", "./cmd/tai"}, {bin + "/plugins/", "./cmd/plugin-tai"}} {
		cmd := exec.Command("go", append([]string{"build", "-race", "-buildvcs=false", "-o"}, step...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %v: %w\n%s", step[1:], err, out)
		}
	}
	return filepath.Join(root, bin), nil
})

// New makes a rig and starts its gateway. Lines of options go into the pool's own
// table of the configuration.
func New(t *testing.T, options ...string) *Rig {
	t.Helper()
	r := Prepare(t, options...)
	r.Serve(t)
	return r
}

// Prepare makes a rig whose gateway does not run yet.
func Prepare(t *testing.T, options ...string) *Rig {
	t.Helper()
	Need(t)
	folder, err := built()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "sb")
	if err != nil {
		t.Fatal(err)
	}
	// Boxes and mounts are for other users too.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &Rig{
		Dir: dir, Root: filepath.Join(dir, "m"), Config: filepath.Join(dir, "sbgw.toml"),
		Addr: "unix://" + filepath.Join(dir, "g.sock"), sbgw: filepath.Join(folder, "sbgw"),
	}
	t.Cleanup(func() { r.clean(t) })
	if r.log, err = os.Create(filepath.Join(dir, "gateway.log")); err != nil {
		t.Fatal(err)
	}
	r.Configure(t, "", options...)
	return r
}

// Configure writes the configuration anew: extra goes before the one pool.
func (r *Rig) Configure(t *testing.T, extra string, options ...string) {
	t.Helper()
	text := fmt.Sprintf(`[gateway]
listen = %q
state_dir = %q
[mount]
root = %q
%s
[[pool]]
name = "local"
addr = "local"
max_total = 0
max_per_user = 0
[pool.options]
%s
`, r.Addr, filepath.Join(r.Dir, "s"), r.Root, extra, strings.Join(options, "\n"))
	if err := os.WriteFile(r.Config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Serve starts the gateway in the foreground of a process of its own and returns
// when it is ready.
func (r *Rig) Serve(t *testing.T) {
	t.Helper()
	cmd := exec.Command(r.sbgw, "serve", "--config", r.Config)
	cmd.Env = append(os.Environ(), quickExit)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.serve, r.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(r.ended)
	r.WaitReady(t)
}

// WaitReady returns when the gateway says that everything configured is there.
func (r *Rig) WaitReady(t *testing.T) {
	t.Helper()
	last := "no answer"
	Eventually(t, readyIn, func() error {
		if r.ended != nil {
			select {
			case <-r.ended:
				t.Fatalf("the gateway ended at once (%v):\n%s", r.serve.ProcessState, r.Log())
			default:
			}
		}
		s, err := r.status()
		if err != nil {
			return err
		}
		if last = s.GetReason(); !s.GetReady() {
			return errors.New(last)
		}
		return nil
	})
}

func (r *Rig) status() (*gatewayv1.GetStatusResponse, error) {
	c, err := client.Dial(r.Addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), commandIn)
	defer cancel()
	return c.Status(ctx)
}

// Status asks the gateway what runs.
func (r *Rig) Status(t *testing.T) *gatewayv1.GetStatusResponse {
	t.Helper()
	s, err := r.status()
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return s
}

// PluginPID returns the pid of the pool's plugin process.
func (r *Rig) PluginPID(t *testing.T) int {
	t.Helper()
	plugins := r.Status(t).GetPlugins()
	if len(plugins) != 1 || plugins[0].GetPid() == 0 {
		t.Fatalf("want one running plugin, got %v", plugins)
	}
	return int(plugins[0].GetPid())
}

// Client connects to the gateway until the test ends.
func (r *Rig) Client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.Dial(r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// KillGateway ends the gateway process by SIGKILL and returns when it is gone.
func (r *Rig) KillGateway(t *testing.T) {
	t.Helper()
	if err := r.serve.Process.Kill(); err != nil {
		t.Fatalf("kill the gateway: %v", err)
	}
	<-r.ended
}

// GatewayPID returns the pid of the gateway that Serve started.
func (r *Rig) GatewayPID() int { return r.serve.Process.Pid }

// Stop ends the gateway by SIGTERM, which leaves boxes and mounts alone, and
// returns its exit code.
func (r *Rig) Stop(t *testing.T) int {
	t.Helper()
	if err := r.serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop the gateway: %v", err)
	}
	select {
	case <-r.ended:
	case <-time.After(downIn):
		t.Fatalf("the gateway did not end within %v of SIGTERM", downIn)
	}
	return r.serve.ProcessState.ExitCode()
}

// Log returns what the gateway logged.
func (r *Rig) Log() string {
	b, _ := os.ReadFile(r.log.Name())
	return string(b)
}

// Result is a command of the command line that ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Command returns a command of the command line, with the rig's configuration.
func (r *Rig) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.sbgw, args...)
	cmd.Env = append(os.Environ(), "SBGW_CONFIG="+r.Config, quickExit)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Shell returns a shell script with the command line as `sbgw` in its bin folder.
func (r *Rig) Shell(ctx context.Context, script string) (*exec.Cmd, error) {
	if err := os.Symlink(filepath.Dir(r.sbgw), filepath.Join(r.Dir, "bin")); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", script)
	cmd.Dir = r.Dir
	cmd.Env = append(os.Environ(), "SBGW_CONFIG="+r.Config, quickExit)
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// CLI runs a command of the command line and returns how it ended.
func (r *Rig) CLI(t *testing.T, args ...string) Result {
	t.Helper()
	return r.CLIInput(t, "", args...)
}

// CLIInput is CLI with standard input.
func (r *Rig) CLIInput(t *testing.T, stdin string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandIn)
	defer cancel()
	cmd := r.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("sbgw %q did not end in %v\nstderr: %s", args, commandIn, stderr.String())
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("sbgw %q: %v", args, err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// Must runs a command that has to succeed and returns its trimmed output.
func (r *Rig) Must(t *testing.T, args ...string) string {
	t.Helper()
	res := r.CLI(t, args...)
	if res.Code != 0 {
		t.Fatalf("sbgw %q: exit code %d, want 0\nstdout: %s\nstderr: %s", args, res.Code, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// Eventually returns when f does not fail any more; after the time the test fails
// with what f said last.
func Eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		<-tick.C
	}
}
