package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yaoapp/sbgw/tests/rig"
)

// secret is what no box may read.
const secret = "planted-secret-4711"

// probeEnv makes the test binary, in a box, the program that tries sockets.
const probeEnv = "SBGW_E2E_PROBE"

// probe prints those of the sockets on which somebody answers.
func probe(sockets []string) {
	for _, s := range sockets {
		if conn, err := net.Dial("unix", s); err == nil {
			conn.Close()
			fmt.Println(s)
		}
	}
}

// TestSecretsMasked: root in a box of image host reads no secret of the machine,
// though some of them are made after the box, and reaches no socket of it.
func TestSecretsMasked(t *testing.T) {
	r := rig.Prepare(t)
	hidden := filepath.Join(r.Dir, "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	config := read(t, r.Config)
	write(t, r.Config, strings.Replace(config, "[pool.options]", fmt.Sprintf("hide = [%q]\n[pool.options]", hidden), 1))
	r.Serve(t)

	// A system without certificates has none.
	if err := os.MkdirAll("/etc/ssl", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/etc/ssl/private", 0o710); err == nil {
		t.Cleanup(func() { os.Remove("/etc/ssl/private") })
	} else if !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	plant(t, "/root/.sbgw-test-secret")
	box := create(t, r)
	planted := []string{
		"/root/.sbgw-test-secret", "/root/.sbgw-test-later", "/home/sbgw-test-secret", "/etc/ssl/private/sbgw-test-secret",
		"/run/sbgw-test-secret", filepath.Join(hidden, "f"), filepath.Join(r.Dir, "s", "f"), filepath.Join(r.Root, box.Workspace, "f"),
	}
	for _, p := range planted[1:] {
		plant(t, p)
	}
	for _, p := range planted {
		if res := r.CLI(t, "exec", box.ID, "cat", p); res.Code == 0 || strings.Contains(res.Stdout, secret) {
			t.Errorf("a box reads %s: %q", p, res.Stdout)
		}
	}
	for _, pattern := range []string{"/etc/shadow*", "/etc/gshadow*", "/etc/ssh/ssh_host_*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range found {
			if res := r.CLI(t, "exec", box.ID, "cat", p); res.Stdout != "" {
				t.Errorf("a box reads %s", p)
			}
		}
	}
	interfaces := "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
	if got := r.Must(t, "exec", box.ID, "sh", "-c", interfaces); got != "lo" {
		t.Errorf("network interfaces of the box: %q, want lo", got)
	}
	testSocketsOutOfReach(t, r, box)
}

// plant puts the secret into a file of this machine until the test ends.
func plant(t *testing.T, path string) {
	t.Helper()
	if dir := filepath.Dir(path); os.Mkdir(dir, 0o710) == nil {
		t.Cleanup(func() { os.Remove(dir) })
	}
	write(t, path, secret)
	t.Cleanup(func() { os.Remove(path) })
}

// testSocketsOutOfReach: a socket of this machine outside of everything masked
// may be seen by name, but nobody answers on it in the box.
func testSocketsOutOfReach(t *testing.T, r *rig.Rig, box view) {
	dir, err := os.MkdirTemp("/var/lib", "sbgw-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(box.Path, "probe"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	find := "find / -xdev -type s 2>/dev/null; find /run /var/run /dev /tmp -type s 2>/dev/null; true"
	sockets := strings.Fields(r.Must(t, "exec", box.ID, "sh", "-c", find))
	args := append([]string{"exec", "-e", probeEnv + "=1", box.ID, "./probe", filepath.Join(dir, "s")}, sockets...)
	if got := r.Must(t, args...); got != "" {
		t.Errorf("the machine answers a box on its sockets %s", got)
	}
}
