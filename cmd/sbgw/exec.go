package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
)

func newExec(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] BOX CMD [ARG…]",
		Short: "Run a command in a box; exits with its code",
		Args:  atLeast("BOX", "CMD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial()
			if err != nil {
				return notStarted(err)
			}
			defer c.Close()
			box, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return notStarted(err)
			}
			return a.exec(cmd.Context(), box, args[1:], f)
		},
	}
	cmd.Flags().SetInterspersed(false)
	f.add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.dir, "workdir", "w", "", "directory to start in (default: the box's)")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "environment, KEY=value; may be repeated")
	fs.StringVarP(&f.user, "user", "u", "", "user in the box, name or uid, with :group")
	return cmd
}

// execFlags are the flags of exec; run shares the first part.
type execFlags struct {
	stdin, tty, noBarrier bool
	timeout               time.Duration

	dir, user string
	env       []string
}

func (f *execFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVarP(&f.stdin, "interactive", "i", false, "forward standard input")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fs.BoolVar(&f.noBarrier, "no-barrier", false, "don't put the command in order with file calls on the mount")
	fs.DurationVar(&f.timeout, "timeout", 0, "kill the command after this time; exit code 124")
}

// exec runs a command and returns its exit code as an error.
func (a *app) exec(ctx context.Context, box *client.Box, cmd []string, f execFlags) error {
	env, err := keyValues("--env", f.env)
	if err != nil {
		return err
	}
	o := client.ExecOptions{
		Dir: f.dir, User: f.user, Env: env, Timeout: f.timeout, OpenStdin: f.stdin, NoBarrier: f.noBarrier,
	}
	if f.tty {
		size := terminalSize()
		o.TTY = &size
		if _, set := env["TERM"]; !set && os.Getenv("TERM") != "" {
			o.Env["TERM"] = os.Getenv("TERM")
		}
	}
	p, err := box.Process(ctx, cmd, o)
	if err != nil {
		return notStarted(err)
	}
	defer p.Close()
	restore, err := a.terminal(p, f)
	if err != nil {
		return notStarted(err)
	}
	defer restore()
	// A signal to us kills the command: nobody would see to it any more.
	stop := context.AfterFunc(ctx, func() { p.Signal(int(syscall.SIGKILL), true) })
	defer stop()
	exit, err := a.pump(p, f)
	if err != nil && exit == (core.ExecExit{}) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &exitStatus{code: exitTimeout, err: fmt.Errorf("the command was killed after %s", f.timeout)}
	}
	return &exitStatus{code: exit.Code, err: err} // the code is good, what err says is beside it
}

// pump copies the command's streams until it has ended.
func (a *app) pump(p core.Process, f execFlags) (core.ExecExit, error) {
	if f.stdin {
		go func() { // ends with the process's input, or with us: a read can't be taken back
			io.Copy(p.Stdin(), a.stdin)
			p.Stdin().Close()
		}()
	}
	var streams sync.WaitGroup
	streams.Go(func() { copyOut(a.stdout, p.Stdout()) })
	streams.Go(func() { copyOut(a.stderr, p.Stderr()) })
	exit, err := p.Wait()
	if err == nil || exit != (core.ExecExit{}) {
		streams.Wait()
	}
	return exit, err
}

// copyOut copies a stream. When nobody reads ours any more the rest is dropped,
// so that the command is not held up.
func copyOut(w io.Writer, r io.Reader) {
	if _, err := io.Copy(w, r); err != nil {
		io.Copy(io.Discard, r)
	}
}

// terminal makes our terminal raw and follows its size, if the command has one
// too and we have. restore undoes it.
func (a *app) terminal(p core.Process, f execFlags) (restore func(), err error) {
	restore = func() {}
	if !f.tty {
		return restore, nil
	}
	fd := int(a.stdin.Fd())
	if f.stdin && term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return restore, err
		}
		restore = func() { term.Restore(fd, old) }
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	go func() {
		for range resized {
			p.Resize(terminalSize())
		}
	}()
	raw := restore
	return func() {
		signal.Stop(resized)
		close(resized)
		raw()
	}, nil
}

// terminalSize returns the size of our terminal, or the usual one without.
func terminalSize() core.WindowSize {
	for _, f := range []*os.File{os.Stdout, os.Stdin, os.Stderr} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && rows > 0 && cols > 0 {
			return core.WindowSize{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return core.WindowSize{Rows: 24, Cols: 80}
}
