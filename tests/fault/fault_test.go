// Package fault kills processes of the system in the middle of work and checks
// that nobody who works notices: programs on the mount, commands in boxes.
package fault

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/tests/rig"
)

// rounds is how often each process is killed.
const rounds = 20

// writerEnv makes the test binary the writing program, on the directory it names.
const writerEnv = "SBGW_FAULT_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		n, err := writeUntilEOF(dir, os.Stdin)
		if err != nil {
			fmt.Fprintf(os.Stderr, "after %d lines: %v\n", n, err)
			os.Exit(1)
		}
		fmt.Println(n)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writer is the program that works on the mount, a process of its own.
type writer struct {
	cmd    *exec.Cmd
	dir    string
	out    strings.Builder
	errors strings.Builder
	ended  chan error
	finish func() error
}

func startWriter(t *testing.T, dir string) *writer {
	t.Helper()
	w := &writer{cmd: exec.Command(os.Args[0]), dir: dir, ended: make(chan error, 1)}
	w.cmd.Env = append(os.Environ(), writerEnv+"="+dir)
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.errors
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.finish = stdin.Close
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.ended <- w.cmd.Wait() }()
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

// check fails the test when the program ended, which it does at its first error.
func (w *writer) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-w.ended:
		t.Fatalf("the writing program ended: %v\n%s", err, w.errors.String())
	default:
	}
}

// progress returns after the program has written more lines than there were.
func (w *writer) progress(t *testing.T) {
	t.Helper()
	before := w.size()
	rig.Eventually(t, 20*time.Second, func() error {
		w.check(t)
		if now := w.size(); now <= before {
			return fmt.Errorf("the program's file stays at %d bytes", now)
		}
		return nil
	})
}

func (w *writer) size() int64 {
	fi, err := os.Stat(filepath.Join(w.dir, logName))
	if err != nil {
		return -1
	}
	return fi.Size()
}

// stop ends the program and returns how many lines it wrote.
func (w *writer) stop(t *testing.T) int {
	t.Helper()
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-w.ended:
		if err != nil {
			t.Fatalf("the writing program saw an error: %v\n%s", err, w.errors.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the writing program does not end")
	}
	n, err := strconv.Atoi(strings.TrimSpace(w.out.String()))
	if err != nil {
		t.Fatalf("the writing program said %q", w.out.String())
	}
	return n
}

// checkComplete: every line that the program wrote is there, once, in order, on
// the mount and for the box.
func checkComplete(t *testing.T, r *rig.Rig, box *client.Box, lines int) {
	t.Helper()
	var want strings.Builder
	for i := range lines {
		want.WriteString(line(i))
	}
	b, err := os.ReadFile(filepath.Join(box.Path(), logName))
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != want.String() {
		t.Errorf("on the mount the file has %d bytes, want %d, or other content", len(b), want.Len())
	}
	if got := r.CLI(t, "exec", box.ID(), "cat", logName).Stdout; got != want.String() {
		t.Errorf("in the box the file has %d bytes, want %d, or other content", len(got), want.Len())
	}
	t.Logf("%d lines complete after %d kills", lines, rounds)
}

// newBox makes a box with a command in it that counts for as long as it lives.
func newBox(t *testing.T, r *rig.Rig) (*client.Box, *ticker) {
	t.Helper()
	id := r.Must(t, "create")
	box, err := r.Client(t).Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	tick := &ticker{path: filepath.Join(box.Path(), "ticks")}
	cmd := r.Command(t.Context(), "exec", id, "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >> ticks; sleep 0.05; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	tick.progress(t)
	return box, tick
}

// ticker watches the counting command's file.
type ticker struct{ path string }

func (k *ticker) count() int {
	b, _ := os.ReadFile(k.path)
	return strings.Count(string(b), "\n")
}

func (k *ticker) progress(t *testing.T) {
	t.Helper()
	before := k.count()
	rig.Eventually(t, 20*time.Second, func() error {
		if now := k.count(); now <= before {
			return fmt.Errorf("the command in the box stays at %d", now)
		}
		return nil
	})
}

// checkUnbroken: the command counted without starting anew.
func (k *ticker) checkUnbroken(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(k.path)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range strings.Fields(string(b)) {
		if got != strconv.Itoa(i+1) {
			t.Fatalf("line %d of the command's file is %q, want %d", i+1, got, i+1)
		}
	}
}
