package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/tests/rig"
)

const rigReady = 30 * time.Second

// TestGatewayRestart: a restarted gateway lists the same boxes in the same
// incarnation, by its own end or by SIGKILL, and open files go on.
func TestGatewayRestart(t *testing.T) {
	r := rig.New(t)
	create(t, r, "one")
	box := create(t, r, "two")
	list := func() []map[string]any {
		boxes := decode[[]map[string]any](t, r.Must(t, "ls", "-o", "json"))
		for _, b := range boxes {
			delete(b, "last_active") // it moves
			delete(b, "processes")
		}
		return boxes
	}
	before := list()
	mountd := r.Status(t).GetMountdPid()
	open, err := os.Create(filepath.Join(box.Path, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		if how == "SIGTERM" {
			if code := r.Stop(t); code != 0 {
				t.Errorf("the gateway's exit code after SIGTERM is %d, want 0", code)
			}
		} else {
			r.KillGateway(t)
		}
		if _, err := open.WriteString(how + "\n"); err != nil {
			t.Errorf("write while there is no gateway: %v", err)
		}
		r.Serve(t)
		if diff := cmp.Diff(before, list()); diff != "" {
			t.Errorf("boxes after %s differ (-want +got):\n%s", how, diff)
		}
		if got := r.Status(t).GetMountdPid(); got != mountd {
			t.Errorf("mountd is process %d after %s, want %d as before", got, how, mountd)
		}
	}
	if got := r.Must(t, "exec", box.ID, "cat", "open"); got != "SIGTERM\nSIGKILL" {
		t.Errorf("the box sees %q in the file that was open all the time", got)
	}
}

// TestNodeKilled: the node's death by SIGKILL touches no process in a box; the
// node is started again and finds it.
func TestNodeKilled(t *testing.T) {
	r := rig.New(t)
	box := create(t, r)
	cmd := r.Command(t.Context(), "exec", box.ID, "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /tmp/ticks; sleep 0.05; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { interrupt(t, cmd) })
	ticks := func() int {
		res := r.CLI(t, "exec", box.ID, "cat", "/tmp/ticks")
		n, _ := strconv.Atoi(strings.TrimSpace(res.Stdout))
		return n
	}
	rig.Eventually(t, 20*time.Second, func() error { return atLeast(ticks(), 1) })
	write(t, filepath.Join(box.Path, "f"), "before\n")

	node := nodePID(t, r)
	before := ticks()
	if err := syscall.Kill(node, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 30*time.Second, func() error { return atLeast(ticks(), before+1) })
	again := ticks()
	rig.Eventually(t, 10*time.Second, func() error { return atLeast(ticks(), again+1) })
	if got := nodePID(t, r); got == node {
		t.Errorf("the node is still process %d", node)
	}
	rig.Eventually(t, 30*time.Second, func() error {
		b, err := os.ReadFile(filepath.Join(box.Path, "f"))
		if err != nil {
			return err
		}
		return expect(string(b), "before\n")
	})
	if got := decode[view](t, r.Must(t, "info", "-o", "json", box.ID)); got.Status != "running" {
		t.Errorf("the box is %s after its node was killed, want running", got.Status)
	}
}

func atLeast(got, want int) error {
	if got < want {
		return expect(strconv.Itoa(got), "at least "+strconv.Itoa(want))
	}
	return nil
}

// nodePID reads the pid that the node keeps in its lock file.
func nodePID(t *testing.T, r *rig.Rig) int {
	t.Helper()
	text := read(t, filepath.Join(r.Dir, "s/pools/local/node.lock"))
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("node.lock has %q", text)
	}
	return pid
}
