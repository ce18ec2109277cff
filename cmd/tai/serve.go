package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/node"
)

func newServe() *cobra.Command {
	var o node.Options
	var debug bool
	cmd := &cobra.Command{
		Use:   "serve --socket PATH --state DIR",
		Short: "Run boxes and serve their volumes on a unix socket until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if debug {
				level = slog.LevelDebug
			}
			o.Log, o.Version = logging.Text(os.Stderr, level), version
			ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
			defer cancel()
			return node.Run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Socket, "socket", "", "unix socket to serve on")
	f.StringVar(&o.StateDir, "state", "", "directory for boxes and volumes")
	f.StringArrayVar(&o.Hide, "hide", nil, "further path of this machine that no box may see; may be repeated")
	f.DurationVar(&o.EventDelay, "event-delay", 0, "hold back file change events, for tests")
	f.BoolVar(&debug, "debug", false, "log more")
	f.MarkHidden("event-delay")
	cmd.MarkFlagRequired("socket")
	cmd.MarkFlagRequired("state")
	return cmd
}
