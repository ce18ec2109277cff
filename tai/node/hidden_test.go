package node_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

// Root in a box finds none of the secrets of its machine, whether they were there
// before the box or came later, under the name or through a link.
func TestHidden(t *testing.T) {
	needRoot(t)
	const secret = "planted-by-the-test"
	dir := stateDir(t)
	hidden := filepath.Join(t.TempDir(), "far") // below /tmp, which no box sees
	pool, err := os.MkdirTemp("/opt", "hide")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(pool) })
	for _, d := range []string{"tree", "real"} {
		if err := os.Mkdir(filepath.Join(pool, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("real", filepath.Join(pool, "link")); err != nil {
		t.Fatal(err)
	}
	hide := []string{pool + "/tree", pool + "/link", pool + "/file", pool + "/later/on"}
	before := []string{
		"/root/.sbgw-test", "/home/sbgw-test/x", "/etc/shadow-sbgw-test", "/etc/gshadow.sbgw-test",
		"/etc/ssh/ssh_host_sbgw_test_key", "/etc/ssl/private/sbgw-test", "/run/sbgw-test",
		"/tmp/sbgw-test", "/var/tmp/sbgw-test", "/mnt/sbgw-test", "/media/sbgw-test", "/boot/sbgw-test",
		"/var/lib/docker/sbgw-test", "/var/lib/kubelet/sbgw-test", "/etc/kubernetes/sbgw-test",
		"/etc/wireguard/sbgw-test", dir + "/sbgw-test", hidden + "/x",
		pool + "/tree/x", pool + "/real/x", pool + "/file",
	}
	for _, p := range before {
		plant(t, p, secret)
	}
	plant(t, pool+"/open", "for everybody")

	r := openIn(t, dir, hide...)
	create(t, r, core.BoxSpec{ID: "b1"})
	after := []string{
		"/root/.sbgw-later", "/home/sbgw-later", "/run/sbgw-later", "/etc/shadow+", "/etc/nshadow",
		"/etc/ssl/private/later", "/etc/rancher/later", pool + "/later/on/x", pool + "/real/later", dir + "/later",
	}
	for _, p := range after {
		plant(t, p, secret)
	}
	if got := sh(t, r, "b1", "cat "+pool+"/open"); got != "for everybody" {
		t.Errorf("a file that is not hidden: %q", got)
	}
	// Also after trying to take the covers off.
	paths := append(append(before, after...), "/etc/shadow", "/etc/gshadow", "/etc/shadow-", pool+"/link/x")
	script := `for p; do
		umount -l $p; umount -l $(dirname $p); mount --bind / /mnt
		cat $p >/dev/null && echo $p; done 2>/dev/null; true`
	got := run(t, r, "b1", core.ExecSpec{Cmd: append([]string{"sh", "-c", script, "sh"}, paths...)})
	if got.Code != 0 || got.stdout != "" {
		t.Errorf("the box can read what is hidden: %+v", got)
	}
	// Not by any other name either: nothing of it is on the box's file systems.
	got = run(t, r, "b1", core.ExecSpec{Cmd: []string{"sh", "-c",
		"for d in /etc /home /root /run /tmp /var/tmp /mnt /media /boot /opt /srv " + dir + "; do grep -rlF " + secret + " $d; done 2>/dev/null"}})
	if got.stdout != "" {
		t.Errorf("the box finds the secret in %s", got.stdout)
	}
}

// No socket of the machine can be reached, by path or by abstract name, and no
// device of it.
func TestUnreachable(t *testing.T) {
	r := openRuntime(t)
	dir, err := os.MkdirTemp("/opt", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range []string{filepath.Join(dir, "s"), "/run/sbgw-test.sock", "@sbgw-test"} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	create(t, r, core.BoxSpec{ID: "b1"})
	probe := filepath.Join(dir, "probe")
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(probe, program, 0o755); err != nil {
		t.Fatal(err)
	}
	got := run(t, r, "b1", core.ExecSpec{
		Cmd: []string{probe, filepath.Join(dir, "s"), "/run/sbgw-test.sock", "@sbgw-test"}, Env: []string{probeEnv + "=1"},
	})
	if got.Code != 0 || got.stdout != "connection refused\nno such file or directory\nconnection refused\n" {
		t.Errorf("sockets of the machine: %+v", got)
	}
	links := sh(t, r, "b1", "cat /proc/net/dev | tail -n +3 | cut -d: -f1")
	if links != "lo" {
		t.Errorf("network interfaces: %q, want lo alone", links)
	}
	disk := run(t, r, "b1", core.ExecSpec{Cmd: []string{"sh", "-c", "mknod /dev/disk b $(stat -c '%Hd %Ld' /) || mknod /dev/disk b 254 0; head -c 1 /dev/disk"}})
	if disk.Code == 0 {
		t.Errorf("the machine's disk: %+v", disk)
	}
	if got := sh(t, r, "b1", "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -s '\\t\\n' ' '"); got != "NoNewPrivs: 1 Seccomp: 2" {
		t.Errorf("status of a process: %q", got)
	}
	if got := sh(t, r, "b1", "grep CapEff /proc/self/status"); !strings.HasSuffix(got, "00000000a80425fb") {
		t.Errorf("capabilities: %q, want Docker's default", got)
	}
}
