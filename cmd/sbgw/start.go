package main

import (
	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

func newStart(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "start BOX…",
		Short: "Start stopped boxes",
		Args:  atLeast("BOX"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.each(args, func(id string) error {
				box, err := c.Get(cmd.Context(), id)
				if err != nil {
					return err
				}
				return box.Start(cmd.Context())
			})
		}),
	}
}
