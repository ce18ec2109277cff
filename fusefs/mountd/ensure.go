package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/yaoapp/sbgw/core"
)

// Spawn says how a mount process is started.
type Spawn struct {
	Socket, FDSocket string
	// Argv is the command, such as /usr/bin/sbgw mountd with its flags.
	Argv []string
	// Env is its whole environment; nil: PATH only.
	Env []string
	// LogFile gets what it says.
	LogFile string
}

const (
	connectTime = 2 * time.Second
	startTime   = 15 * time.Second
	startPoll   = 20 * time.Millisecond
)

// Ensure finds a running mount process, or starts one, apart from the caller (in
// a session of its own), and waits until it answers. One that does not start is
// ErrUnavailable with what it said last.
func Ensure(ctx context.Context, s Spawn) (*Client, error) {
	c, err := connect(ctx, s)
	if err == nil || !errors.Is(err, core.ErrUnavailable) {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	exited, said, err := s.start()
	if err != nil {
		return nil, fmt.Errorf("start the mount process: %w", err)
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		c, err := connect(ctx, s)
		if err == nil || !errors.Is(err, core.ErrUnavailable) && ctx.Err() == nil {
			return c, err
		}
		select {
		case <-exited:
			return nil, fmt.Errorf("start the mount process: %w: it ended: %s", core.ErrUnavailable, said())
		case <-ctx.Done():
			return nil, fmt.Errorf("start the mount process: %w: no answer in %v: %s", core.ErrUnavailable, startTime, said())
		case <-tick.C:
		}
	}
}

func connect(ctx context.Context, s Spawn) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	c, err := Connect(ctx, s.Socket, s.FDSocket)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	return c, err
}

// start runs the command. exited is closed when it ends; a goroutine reaps it and
// lives as long as the mount process does or the caller. said returns the end of
// what it has written.
func (s Spawn) start() (exited <-chan struct{}, said func() string, err error) {
	if len(s.Argv) == 0 {
		return nil, nil, core.Invalid("no command for the mount process")
	}
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, nil, fmt.Errorf("open its log: %w", err)
	}
	cmd := exec.Command(s.Argv[0], s.Argv[1:]...)
	cmd.Env = s.Env
	if cmd.Env == nil {
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	return done, func() string { return tail(s.LogFile, from) }, nil
}

// tail returns the last line written to a log after an offset.
func tail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.NewSectionReader(f, from, 64<<10))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}
