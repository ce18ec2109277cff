package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/gateway"
)

// downTimeout bounds how long `down` waits for the gateway's process to end after
// its answer.
const downTimeout = 30 * time.Second

func newDown(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the gateway, its boxes and mounts; boxes are kept with their files",
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.down(cmd.Context()) },
	}
}

func (a *app) down(ctx context.Context) error {
	c, err := a.dial()
	if errors.Is(err, core.ErrUnavailable) {
		if c, err = a.recoverGateway(ctx); err == nil && c == nil {
			a.say("The gateway is not running, and nothing of it is left.")
			return nil
		}
	}
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	stopped, err := c.Shutdown(ctx, true)
	if errors.Is(err, core.ErrUnavailable) && !alive(int(st.GetPid())) {
		err = nil // it ended while it answered
	}
	werr := waitEnd(ctx, int(st.GetPid()))
	if err := errors.Join(err, werr); err != nil {
		return fmt.Errorf("stop the gateway: %w", err)
	}
	switch len(stopped) {
	case 0:
		a.say("The gateway is stopped. No box was running.")
	default:
		a.say("The gateway is stopped, and %d boxes: %s.", len(stopped), strings.Join(stopped, ", "))
	}
	a.say("Boxes and workspaces are kept with their files in %s; `sbgw up` and `sbgw start` go on with them.", st.GetStateDir())
	return nil
}

// recoverGateway starts a gateway where one was killed and left processes or
// mounts, so that it can end them in order; nil if nothing is left.
func (a *app) recoverGateway(ctx context.Context) (*client.Client, error) {
	conf, err := a.config()
	if err != nil {
		return nil, err
	}
	if !gateway.Leftovers(conf) {
		return nil, nil
	}
	a.say("The gateway is not running, but processes of it are: starting it to end them in order.")
	d, err := a.daemon(conf)
	if err != nil {
		return nil, err
	}
	return d.connect(ctx, conf.Gateway.Listen)
}

func waitEnd(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	for alive(pid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: pid %d is still there", core.ErrUnavailable, pid)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// alive tells whether a process is there and not only waited for.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
