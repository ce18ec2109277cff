package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/config"
)

// upTimeout bounds how long `up` waits until the gateway answers and is ready.
const upTimeout = 60 * time.Second

// settleTimeout is how long a gateway that answers may say that it is not ready
// before `up` takes its reason for the last word.
const settleTimeout = 20 * time.Second

func newUp(a *app) *cobra.Command {
	var tour bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the gateway in the background and wait until it is ready",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.up(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if tour {
				if err := takeTour(cmd.Context(), a.stdout, c); err != nil {
					return fmt.Errorf("tour: %w", err)
				}
			}
			a.say("\nThe gateway is running. Next:")
			for _, l := range [][2]string{
				{"%s status", "what is there"},
				{"%s create", "a box with a workspace; prints its id"},
				{"%s exec -it BOX bash", "a shell in it"},
				{"ls $(%s path BOX)", "its files, by ordinary path"},
				{"%s down", "stop gateway and boxes; files are kept"},
			} {
				a.say("  %-30s %s", fmt.Sprintf(l[0], os.Args[0]), l[1])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&tour, "tour", false, "then show the main things step by step")
	return cmd
}

// up returns a client of the gateway, starting one in the background where none
// answers.
func (a *app) up(ctx context.Context) (*client.Client, error) {
	conf, err := a.config()
	if err != nil {
		return nil, err
	}
	if c, err := client.Dial(conf.Gateway.Listen); err == nil {
		a.say("The gateway is running already.")
		return c, a.awaitReady(ctx, c, nil)
	} else if !errors.Is(err, core.ErrUnavailable) {
		return nil, err
	}
	began := time.Now()
	d, err := a.daemon(conf)
	if err != nil {
		return nil, err
	}
	c, err := d.connect(ctx, conf.Gateway.Listen)
	if err != nil {
		return nil, err
	}
	if err := a.awaitReady(ctx, c, d); err != nil {
		c.Close()
		return nil, err
	}
	a.say("The gateway is ready after %s (pid %d, log %s).", time.Since(began).Round(time.Millisecond), d.pid, d.log)
	return c, nil
}

// awaitReady waits until everything configured is there.
func (a *app) awaitReady(ctx context.Context, c *client.Client, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	reason := "it does not answer"
	for {
		st, err := c.Status(ctx)
		if d.ended() {
			return d.failure()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if st.GetReady() {
			return nil
		}
		if err == nil {
			reason = st.GetReason()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the gateway runs, but is not ready: %s; see `sbgw status`", core.ErrUnavailable, reason)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// daemon is a gateway in the background that was just started.
type daemon struct {
	pid  int
	log  string
	done chan struct{} // closed when it has ended
	err  error         // after done
}

// daemon starts `serve` in a session of its own, with its log in the state
// directory.
func (a *app) daemon(conf config.Config) (*daemon, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the sbgw executable: %w", err)
	}
	args := []string{"serve"}
	if file := config.Find(a.configFile); file != "" {
		if file, err = filepath.Abs(file); err != nil {
			return nil, fmt.Errorf("find the configuration: %w", err)
		}
		args = append(args, "--config", file)
	}
	if err := os.MkdirAll(conf.Gateway.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w; run as root or set gateway.state_dir", err)
	}
	d := &daemon{log: filepath.Join(conf.Gateway.StateDir, "gateway.log"), done: make(chan struct{})}
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	fmt.Fprintf(log, "--- started by `sbgw up` %s\n", time.Now().Format(time.RFC3339))
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the gateway: %w", err)
	}
	d.pid = cmd.Process.Pid
	go func() { // ends with the daemon or this command
		d.err = cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// connect waits until the gateway answers.
func (d *daemon) connect(ctx context.Context, addr string) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	for {
		c, err := client.Dial(addr)
		if err == nil {
			return c, nil
		}
		select {
		case <-d.done:
			return nil, d.failure()
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: the gateway (pid %d) did not answer in time; see %s", core.ErrUnavailable, d.pid, d.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ended tells whether the gateway has ended; there may be no daemon of ours.
func (d *daemon) ended() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// failure is why the gateway ended: its own last words, with its exit code.
func (d *daemon) failure() error {
	code := exitError
	if e, ok := errors.AsType[*exec.ExitError](d.err); ok && e.ExitCode() > 0 {
		code = e.ExitCode()
	}
	return &exitStatus{code: code, err: fmt.Errorf("the gateway did not start: %s (log %s)", lastWords(d.log), d.log)}
}

// lastWords returns the error lines at a log's end.
func lastWords(path string) string {
	const most = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	text := string(data)
	if i := strings.LastIndex(text, "\n--- started"); i >= 0 {
		text = text[i+1:]
	}
	if i := strings.LastIndex(text, "sbgw: "); i >= 0 {
		text = text[i+len("sbgw: "):]
	}
	return strings.TrimSpace(text)
}
