package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
)

// serveMounted starts a node in a mount namespace of its own, after a script that
// may mount what it likes. $D is dir, $S the state directory.
func serveMounted(t *testing.T, dir, state, script string, args ...string) {
	t.Helper()
	command := "set -e; D=$1; S=$2; shift 2; " + script + `; exec "$@"`
	argv := []string{"unshare", "-m", "--propagation", "private", "sh", "-c", command, "sh", dir, state,
		taiBinary, "serve", "--socket", filepath.Join(dir, "node.sock"), "--state", state}
	serveAs(t, dir, append(argv, args...)...)
}

// Where the state directory does not do for an overlay, a box's files are in
// memory, bounded, and gone when it stops.
func TestUpperInMemory(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	state := filepath.Join(dir, "state")
	serveMounted(t, dir, state, "mkdir $D/l $D/u $D/w $S; mount -t overlay o -o lowerdir=$D/l,upperdir=$D/u,workdir=$D/w $S")
	b := dial(t, dir)
	t.Cleanup(func() { removeAll(t, b, state) })
	create(t, b, core.BoxSpec{ID: "b1", Memory: 64 << 20})
	if got := sh(t, b, "b1", "echo x > /made && cat /made; ls /root /home | wc -l; cat /etc/shadow 2>&1 | wc -l"); got != "x\n3\n1" {
		t.Errorf("in the box: %q", got)
	}
	got := run(t, b, "b1", core.ExecSpec{Cmd: []string{"sh", "-c", "head -c 100000000 /dev/zero > /big"}})
	if got.Code == 0 {
		t.Errorf("100 MB in a box of 64: %+v", got)
	}
	if _, err := b.Stop(t.Context(), core.BoxRef{ID: "b1"}, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
		t.Fatal(err)
	}
	if got := run(t, b, "b1", core.ExecSpec{Cmd: []string{"test", "-e", "/made"}}); got.Code != 1 {
		t.Errorf("a file in memory outlived the stop: %+v", got)
	}
}

// Mounts of the machine where programs live are in the box, writable for it alone
// and with their hidden parts hidden; a bind mount of a hidden place is hidden.
func TestMachineMounts(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	opt, err := os.MkdirTemp("/opt", "mounts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(opt) })
	serveMounted(t, dir, dir, strings.ReplaceAll(`mkdir $D/disk OPT/a OPT/b; truncate -s 16M $D/img; mkfs.ext4 -q $D/img
		mount -o loop $D/img OPT/a; echo program > OPT/a/program; mkdir OPT/a/secret; echo planted > OPT/a/secret/x
		mount --bind OPT/a/secret OPT/b`, "OPT", opt), "--hide", opt+"/a/secret")
	b := dial(t, dir)
	t.Cleanup(func() { removeAll(t, b, dir) })
	create(t, b, core.BoxSpec{ID: "b1"})
	if got := sh(t, b, "b1", "cd "+opt+"; cat a/program; echo mine > a/program; cat a/program; find a b | sort"); got != "program\nmine\na\na/lost+found\na/program\na/secret\nb" {
		t.Errorf("in the box: %q", got)
	}
	if got := run(t, b, "b1", core.ExecSpec{Cmd: []string{"grep", "-r", "planted", opt}}); got.Code == 0 {
		t.Errorf("the secret: %+v", got)
	}
}
