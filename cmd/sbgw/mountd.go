package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/fusefs/mountd"
	"github.com/yaoapp/sbgw/internal/logging"
)

// newMountd is started by the gateway, not by people.
func newMountd(a *app) *cobra.Command {
	var c mountd.Config
	cmd := &cobra.Command{
		Use:    "mountd",
		Short:  "Run the process of the mounts",
		Hidden: true,
		Args:   exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Log, c.Version = logging.Text(a.stderr, slog.LevelInfo), version
			return mountd.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Socket, "socket", "", "socket to serve")
	f.StringVar(&c.FDSocket, "fd-socket", "", "socket to hand descriptors out on")
	f.StringVar(&c.Root, "root", "", "mount root")
	f.BoolVar(&c.AllowOther, "allow-other", false, "let other users into the mounts")
	for _, name := range []string{"socket", "fd-socket", "root"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // a flag of this name was made above
		}
	}
	return cmd
}
