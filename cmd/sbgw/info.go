package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

func newInfo(a *app) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "info BOX",
		Short: "Show what is known of a box",
		Args:  exactly("BOX"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			box, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v := viewBox(box)
			return out.print(a.stdout, v, func(w io.Writer) { describeBox(w, v) })
		}),
	}
	out.add(cmd)
	return cmd
}

func describeBox(w io.Writer, v boxView) {
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", key, value)
		}
	}
	row("id", v.ID)
	row("pool", v.Pool)
	row("status", v.Status)
	row("reason", v.Reason)
	if v.ExitCode != nil {
		row("exit code", fmt.Sprint(*v.ExitCode))
	}
	row("image", v.Image)
	row("network", v.Network)
	row("policy", v.Policy)
	row("owner", v.Owner)
	row("workspace", v.Workspace)
	row("path", v.Path)
	row("processes", fmt.Sprint(v.Processes))
	row("container", v.ContainerID)
	row("created", v.CreatedAt.Local().Format(time.RFC3339))
	row("last active", v.LastActive.Local().Format(time.RFC3339))
	for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
		row("label", key+"="+v.Labels[key])
	}
}
