package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

func newPath(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "path BOX|WORKSPACE",
		Short: "Print the local directory of a box's files or of a workspace",
		Args:  exactly("BOX|WORKSPACE"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			path, err := c.Path(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, path)
			return err
		}),
	}
}
