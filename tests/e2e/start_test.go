package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/yaoapp/sbgw/tests/rig"
)

// TestServeRefuses: a gateway that can't or must not start says why, what to do,
// and leaves everything as it was.
func TestServeRefuses(t *testing.T) {
	tests := []struct {
		name string
		prep func(t *testing.T, r *rig.Rig)
		code int
		says []string
	}{
		{"unknown keys", func(t *testing.T, r *rig.Rig) {
			write(t, r.Config, "[gateway]\nlisten = \"unix:///tmp/x.sock\"\nfrob = 1\n[mount]\nrot = \"/x\"\n")
		}, 2, []string{"frob", "3", "rot", "5"}},
		{"not TOML", func(t *testing.T, r *rig.Rig) { write(t, r.Config, "[gateway\n") }, 2, []string{"1"}},
		{"no such file", func(t *testing.T, r *rig.Rig) {
			if err := os.Remove(r.Config); err != nil {
				t.Fatal(err)
			}
		}, 2, []string{"sbgw.toml"}},
		{"unknown owner", func(t *testing.T, r *rig.Rig) { r.Configure(t, `owner = "mine"`) }, 2, []string{"owner", "squash"}},
		{"foreign file in the mount root", func(t *testing.T, r *rig.Rig) {
			if err := os.MkdirAll(r.Root, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(r.Root, "precious"), "x")
		}, 2, []string{"precious"}},
		{"mount root is a file", func(t *testing.T, r *rig.Rig) { write(t, r.Root, "x") }, 2, []string{r0("m")}},
		{"long socket path", func(t *testing.T, r *rig.Rig) {
			r.Addr = "unix://" + filepath.Join(r.Dir, strings.Repeat("s", 120))
			r.Configure(t, "")
		}, 2, []string{"107"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := rig.Prepare(t)
			tc.prep(t, r)
			refused(t, r, tc.code, tc.says...)
			if tc.name == "foreign file in the mount root" {
				if got := read(t, filepath.Join(r.Root, "precious")); got != "x" {
					t.Errorf("the foreign file has %q now", got)
				}
			}
		})
	}
}

// r0 is a path that differs in each run by its folder; its end is looked for.
func r0(name string) string { return "/" + name }

func refused(t *testing.T, r *rig.Rig, code int, says ...string) {
	t.Helper()
	res := r.CLI(t, "serve", "--config", r.Config)
	if res.Code != code {
		t.Errorf("serve: exit code %d, want %d; stderr: %s", res.Code, code, res.Stderr)
	}
	for _, s := range says {
		if !strings.Contains(res.Stderr, s) {
			t.Errorf("serve says %q, want %q in it", res.Stderr, s)
		}
	}
}

// TestSecondGateway: state directory and socket have one gateway; a second one
// names the first by its pid.
func TestSecondGateway(t *testing.T) {
	r := rig.New(t)
	pid := strconv.Itoa(r.GatewayPID())
	refused(t, r, 5, pid)
	addr := r.Addr
	r.Addr += "2"
	r.Configure(t, "")
	refused(t, r, 5, pid) // same state directory, another socket
	r.Addr = addr
	r.Configure(t, "")
	r.Must(t, "status")
}

// TestStaleSocket: the socket that a killed gateway left is no obstacle.
func TestStaleSocket(t *testing.T) {
	r := rig.Prepare(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: strings.TrimPrefix(r.Addr, "unix://"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	r.Serve(t)
	r.Must(t, "status")
}

// TestBadPlugin: a missing or foreign plugin binary is said by status and by what
// needs it; the gateway itself runs.
func TestBadPlugin(t *testing.T) {
	tests := []struct {
		name   string
		binary string // empty: none
	}{
		{"missing", ""},
		{"not a plugin", "#!/bin/sh\necho hello from something else\nexit 1\n"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := rig.Prepare(t)
			dir := filepath.Join(r.Dir, "plugins")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "plugin-tai")
			if tc.binary != "" {
				if err := os.WriteFile(path, []byte(tc.binary), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r.Configure(t, fmt.Sprintf("[plugins]\ndir = %q", dir))
			cmd := r.Command(t.Context(), "serve", "--config", r.Config)
			var log strings.Builder
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { interrupt(t, cmd) })
			rig.Eventually(t, rigReady, func() error {
				if res := r.CLI(t, "status", "-o", "json"); res.Code != 0 || !strings.Contains(res.Stdout, "plugin-tai") {
					return errors.New(res.Stdout + res.Stderr)
				}
				return nil
			})
			res := r.CLI(t, "create")
			if res.Code != 4 || !strings.Contains(res.Stderr, "plugin-tai") {
				t.Errorf("create: exit code %d, want 4 with the plugin's name; stderr: %s", res.Code, res.Stderr)
			}
		})
	}
}

func TestNoGateway(t *testing.T) {
	r := rig.Prepare(t)
	for _, args := range [][]string{{"ls"}, {"status"}, {"create"}} {
		if res := r.CLI(t, args...); res.Code != 4 || !strings.Contains(res.Stderr, "sbgw up") {
			t.Errorf("%q without a gateway: exit code %d, want 4 and the way out; stderr: %s", args, res.Code, res.Stderr)
		}
	}
	if res := r.CLI(t, "down"); res.Code != 0 {
		t.Errorf("down without a gateway: exit code %d, want 0; stderr: %s", res.Code, res.Stderr)
	}
}

// interrupt sends SIGINT to a command and waits for its end.
func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
}

func stat(path string) error {
	_, err := os.Stat(path)
	return err
}

func absent(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is still there: %v", path, err)
	}
	return nil
}

func expect(got, want string) error {
	if got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}
