package fault

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/tests/rig"
)

// TestGatewayKilled: SIGKILL to the gateway touches no file call and no command;
// it leaves no plugin process, and the next gateway lists the same box.
func TestGatewayKilled(t *testing.T) {
	r := rig.New(t)
	box, tick := newBox(t, r)
	before := box.Snapshot()
	w := startWriter(t, box.Path())
	w.progress(t)
	for round := range rounds {
		plugin := r.PluginPID(t)
		r.KillGateway(t)
		rig.Eventually(t, 10*time.Second, func() error {
			if rig.Alive(plugin) {
				return errors.New("the plugin process outlives its gateway")
			}
			return nil
		})
		w.progress(t)
		tick.progress(t)
		r.Serve(t)
		checkBox(t, r, before)
		if got := r.Must(t, "exec", box.ID(), "echo", "again"); got != "again" {
			t.Fatalf("round %d: exec says %q", round, got)
		}
		w.check(t)
	}
	checkComplete(t, r, box, w.stop(t))
	tick.progress(t)
	tick.checkUnbroken(t)
}

// checkBox: the gateway lists the one box as it was.
func checkBox(t *testing.T, r *rig.Rig, want core.BoxInfo) {
	t.Helper()
	c, err := client.Dial(r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	boxes, err := c.List(t.Context(), core.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(boxes) != 1 {
		t.Fatalf("%d boxes listed, want 1", len(boxes))
	}
	got := boxes[0].Snapshot()
	if got.ID != want.ID || got.Status != want.Status || got.Incarnation != want.Incarnation ||
		got.Workspace != want.Workspace || !got.CreatedAt.Equal(want.CreatedAt) {
		t.Fatalf("the box is listed as %+v, want %+v", got, want)
	}
}

// TestPluginKilled: SIGKILL to the plugin touches no file call and no command
// that runs. An exec in flight ends with ErrPluginGone, the next one works.
func TestPluginKilled(t *testing.T) {
	r := rig.New(t)
	box, tick := newBox(t, r)
	w := startWriter(t, box.Path())
	w.progress(t)
	for round := range rounds {
		plugin := r.PluginPID(t)
		ended := startSleep(t, box)
		if err := syscall.Kill(plugin, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, core.ErrPluginGone) {
				t.Fatalf("round %d: the exec in flight ended with %v, want ErrPluginGone", round, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: the exec in flight does not end", round)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		res, err := box.Exec(ctx, []string{"echo", "again"}, client.ExecOptions{})
		cancel()
		if err != nil || res.Stdout != "again\n" {
			t.Fatalf("round %d: the next exec: %+v, %v", round, res, err)
		}
		w.progress(t)
		tick.progress(t)
	}
	checkComplete(t, r, box, w.stop(t))
	tick.checkUnbroken(t)
}

// startSleep starts a command that ends in a while and returns, once it runs, the
// channel with the error that waiting for it gives.
func startSleep(t *testing.T, box *client.Box) <-chan error {
	t.Helper()
	s, err := box.Stream(t.Context(), []string{"sh", "-c", "echo runs; exec sleep 60"}, client.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if n, err := s.Stdout.Read(buf); err != nil || !strings.HasPrefix("runs\n", string(buf[:n])) {
		t.Fatalf("the command says %q, %v", buf[:n], err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.Wait()
		ended <- err
	}()
	return ended
}

// TestPluginKilledCLI: the command line says what happened to its command.
func TestPluginKilledCLI(t *testing.T) {
	r := rig.New(t)
	box, _ := newBox(t, r)
	cmd := r.Command(t.Context(), "exec", box.ID(), "sh", "-c", "touch started; exec sleep 60")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 20*time.Second, func() error { return syscall.Access(box.Path()+"/started", 0) })
	if err := syscall.Kill(r.PluginPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 4 || !strings.Contains(stderr.String(), "plugin") {
		t.Errorf("exit code %d, want 4 with a word about the plugin; stderr: %s", code, stderr.String())
	}
}
