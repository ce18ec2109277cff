package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

// inChroot makes a root on a file system of its own that is not that file
// system's root, with the machine's folders in it, and runs the command there.
const inChroot = `set -e
top=$1; shift
mount -t tmpfs tmpfs "$top"
root=$top/root
mkdir "$root"
for f in bin sbin lib lib64 usr etc proc sys dev var tmp; do
	if [ -L "/$f" ]; then
		cp -P "/$f" "$root/$f"
	elif [ -d "/$f" ]; then
		mkdir "$root/$f"
		mount --rbind "/$f" "$root/$f"
	fi
done
exec chroot "$root" "$@"`

// A node whose root is not its mount namespace's, as after chroot(2), makes boxes
// that commands are run in.
func TestChroot(t *testing.T) {
	needRoot(t)
	dir := stateDir(t)
	top, err := os.MkdirTemp("/opt", "root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	serveAs(t, dir, "unshare", "--mount", "--propagation", "private", "sh", "-c", inChroot, "sh", top,
		taiBinary, "serve", "--socket", filepath.Join(dir, "node.sock"), "--state", dir)
	b := dial(t, dir)
	t.Cleanup(func() { removeAll(t, b, dir) })
	create(t, b, core.BoxSpec{ID: "b1"})
	if got := sh(t, b, "b1", "echo in; cat /etc/shadow 2>/dev/null; true"); got != "in" {
		t.Errorf("a command in the box: got %q, want %q", got, "in")
	}
}
