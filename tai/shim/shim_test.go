package shim

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newOutput returns an output, the end that a process would write to, and what to
// call when the process has ended.
func newOutput(t *testing.T) (o *output, w *os.File, end func()) {
	t.Helper()
	r, w, err := pipe(uint32(os.Getuid()), uint32(os.Getgid()), true)
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	o = &output{f: r, exited: exited}
	t.Cleanup(func() {
		w.Close()
		o.release()
	})
	return o, w, func() {
		close(exited)
		o.processEnded()
	}
}

func TestOutputEndsWithItsWriter(t *testing.T) {
	o, w, _ := newOutput(t)
	if _, err := w.WriteString("all of it"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got, err := io.ReadAll(o); err != nil || string(got) != "all of it" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOutputEndsWithItsProcess(t *testing.T) {
	o, w, end := newOutput(t) // w stays open, as in a process in the background
	if _, err := w.WriteString("all of it"); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		got, _ := io.ReadAll(o)
		read <- string(got)
	}()
	select {
	case got := <-read:
		t.Fatalf("ended before the process did, with %q", got)
	case <-time.After(2 * lingerTime):
	}
	end()
	select {
	case got := <-read:
		if got != "all of it" {
			t.Errorf("got %q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("no end")
	}
}

func TestOutputWaitsForSlowReaders(t *testing.T) {
	o, w, end := newOutput(t)
	if _, err := w.Write(make([]byte, 60_000)); err != nil { // a pipe holds 64 KiB
		t.Fatal(err)
	}
	end()
	total := 0
	for buf := make([]byte, 30_000); ; {
		<-time.After(2 * lingerTime)
		n, err := o.Read(buf)
		total += n
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if total != 60_000 {
		t.Errorf("read %d bytes, want 60000", total)
	}
}

// What still writes to an output that was let go of is not disturbed.
func TestOutputReleased(t *testing.T) {
	o, w, end := newOutput(t)
	end()
	o.release()
	for range 4 {
		if _, err := w.Write(make([]byte, 1<<16)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReaper(t *testing.T) {
	r := newReaper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for script, want := range map[string]int{"exit 3": 3, "kill -9 $$": 137, "true": 0} {
		cmd := exec.Command("sh", "-c", script)
		status, err := r.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Wait(cmd, status); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", script, got, err, want)
		}
		if err := r.signal(cmd.Process.Pid, unix.SIGKILL, false); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal to a process that was waited for: %v", err)
		}
	}

	// A child that ends before it is watched is not lost, one of before the mark
	// is not taken for it.
	mark := r.mark()
	cmd := exec.Command("sh", "-c", "exit 4")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for r.mark() == mark {
		<-time.After(time.Millisecond)
	}
	if got := exitCode(<-r.watch(cmd.Process.Pid, mark)); got != 4 {
		t.Errorf("an early end: got %d, want 4", got)
	}
	r.strays[1] = stray{at: mark}
	select {
	case <-r.watch(1, mark):
		t.Error("an end of before the mark was taken")
	default:
	}
	cmd.Wait()
}

func TestBoundedLog(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := newBoundedLog(uint32(os.Getuid()), uint32(os.Getgid()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.w.Write(make([]byte, 5*mainLogSize/2)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{mainLog: mainLogSize / 2, mainLog + ".1": mainLogSize} {
		if st, err := os.Stat(name); err != nil || st.Size() != want {
			t.Errorf("%s: %v, %v, want %d bytes", name, st, err, want)
		}
	}
}

func TestAlive(t *testing.T) {
	ticks, err := ticksOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !(State{PID: os.Getpid(), Ticks: ticks}).Alive() {
		t.Error("this process is not alive")
	}
	for _, s := range []State{{}, {PID: os.Getpid(), Ticks: ticks + 1}, {PID: 1 << 22, Ticks: ticks}} {
		if s.Alive() {
			t.Errorf("%+v is alive", s)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if err := WriteConfig(dir, Config{Incarnation: "one"}); err != nil {
		t.Fatal(err)
	}
	code := 3
	if err := WriteExit(dir, Exit{Incarnation: "one", Code: &code}); err != nil {
		t.Fatal(err)
	}
	if e, err := ReadExit(dir); err != nil || e.Code == nil || *e.Code != 3 {
		t.Errorf("exit: %+v, %v", e, err)
	}
	if err := WriteConfig(dir, Config{Incarnation: "two"}); err != nil {
		t.Fatal(err)
	}
	if e, err := ReadExit(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the exit of an earlier start: %+v, %v", e, err)
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := ReadState(dir); err == nil {
		t.Errorf("a broken file: %+v", s)
	}
	if link, err := Await(t.Context(), dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a shim that is not there: %v, %v", link, err)
	}
}
