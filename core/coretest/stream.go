package coretest

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

// stream has the cases of slow, absent and vanishing readers.
func (s *suite) stream() []testCase {
	return []testCase{
		{"slow_reader", s.servesSlowReader},
		{"undrained_stderr", s.survivesUndrained},
		{"unread_exit", s.exitsUnread},
		{"close", s.closesWithoutKilling},
	}
}

// readLine reads up to a newline, one byte at a time so that nothing after it is
// lost.
func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	var line []byte
	var err error
	within(t, "a line of output", func() {
		b := make([]byte, 1)
		for err == nil && !bytes.HasSuffix(line, []byte("\n")) {
			var n int
			n, err = r.Read(b)
			line = append(line, b[:n]...)
		}
	})
	if err != nil && !bytes.HasSuffix(line, []byte("\n")) {
		t.Fatalf("read a line: got %q, %v", line, err)
	}
	return strings.TrimSuffix(string(line), "\n")
}

// drain feeds and reads a process until it ended. An error is in the exit: no code
// is -1.
func drain(p core.Process, stdin string) result {
	var out, errs bytes.Buffer
	var streams sync.WaitGroup
	streams.Go(func() { io.Copy(&out, p.Stdout()) })
	streams.Go(func() { io.Copy(&errs, p.Stderr()) })
	io.WriteString(p.Stdin(), stdin)
	p.Stdin().Close()
	exit, err := p.Wait()
	if err != nil {
		exit.Code = -1
	}
	streams.Wait()
	return result{out.String(), errs.String(), exit}
}

func (s *suite) servesSlowReader(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x"}})
	total := 0
	within(t, "the end of the output", func() {
		b := make([]byte, 1000)
		for {
			n, err := p.Stdout().Read(b)
			if strings.Trim(string(b[:n]), "x") != "" {
				t.Errorf("output at %d: got %q", total, b[:n])
			}
			total += n
			if err != nil {
				return
			}
		}
	})
	if total != 1<<20 {
		t.Errorf("output: got %d bytes, want %d", total, 1<<20)
	}
	if exit := wait(t, p); exit.Code != 0 {
		t.Errorf("exit: got %+v", exit)
	}
}

// flood writes a megabyte to standard error in the background.
const flood = `{ head -c 1048576 /dev/zero | tr '\0' e; } >&2 & `

func (s *suite) survivesUndrained(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", flood + `echo out; wait; echo end`}})
	if got := readLine(t, p.Stdout()); got != "out" {
		t.Errorf("stdout beside an unread stderr: got %q", got)
	}
	var errs []byte
	within(t, "stderr, read at last", func() { errs, _ = io.ReadAll(p.Stderr()) })
	if len(errs) != 1<<20 {
		t.Errorf("stderr: got %d bytes, want %d", len(errs), 1<<20)
	}
	if got := readLine(t, p.Stdout()); got != "end" {
		t.Errorf("stdout after it: got %q", got)
	}
	wait(t, p)
}

func (s *suite) exitsUnread(t *testing.T) {
	st := s.box(t)
	p := s.start(t, st.ID, core.ExecSpec{Cmd: []string{"sh", "-c", flood + `exit 5`}})
	if exit := wait(t, p); exit.Code != 5 {
		t.Errorf("exit beside an unread stderr: got %+v, want code 5", exit)
	}
}

func (s *suite) closesWithoutKilling(t *testing.T) {
	v, e := s.volume(t)
	st := s.box(t, with(v))
	p := s.start(t, st.ID, core.ExecSpec{
		Cmd: []string{"sh", "-c", "echo up; cat; yes | head -c 500000; echo done > after"}, Stdin: true,
	})
	readLine(t, p.Stdout())
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	files := s.h.Files(t, e)
	eventually(t, "the end of a process let go", func() bool {
		data, err := files.ReadFile("after")
		return err == nil && string(data) == "done\n"
	})
}
