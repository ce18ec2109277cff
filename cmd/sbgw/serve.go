package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/gateway"
	"github.com/yaoapp/sbgw/internal/config"
	"github.com/yaoapp/sbgw/internal/logging"
)

func newServe(a *app) *cobra.Command {
	var o config.Config
	var level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in the foreground",
		Long: "Run the gateway in the foreground until SIGTERM or SIGINT. Boxes, their node and the\n" +
			"mounts go on after it and are found again; `sbgw down` ends them too.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(func(c *config.Config) { override(c, o) })
			if err != nil {
				return err
			}
			var l slog.Level
			if err := l.UnmarshalText([]byte(level)); err != nil {
				return usage("log level %q: need debug, info, warn or error", level)
			}
			return gateway.Run(cmd.Context(), gateway.Options{Config: c, Version: version, Log: logging.Text(a.stderr, l)})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Gateway.Listen, "listen", "", "address of the API, unix:///path")
	f.StringVar(&o.Gateway.StateDir, "state-dir", "", "state directory")
	f.StringVar(&o.Mount.Root, "mount-root", "", "directory that workspaces are shown in")
	f.StringVar(&o.Plugins.Dir, "plugins-dir", "", "folder of the plugins")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// override sets in c what flags set in o.
func override(c *config.Config, o config.Config) {
	for _, f := range []struct{ to, from *string }{
		{&c.Gateway.Listen, &o.Gateway.Listen},
		{&c.Gateway.StateDir, &o.Gateway.StateDir},
		{&c.Mount.Root, &o.Mount.Root},
		{&c.Plugins.Dir, &o.Plugins.Dir},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
}
