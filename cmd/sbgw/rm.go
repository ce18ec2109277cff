package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

func newRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm BOX…",
		Short: "Kill and delete boxes; their workspaces stay",
		Args:  atLeast("BOX"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.each(args, func(id string) error { return c.Remove(cmd.Context(), id) })
		}),
	}
}

// each does something to every id and prints those that it was done to. One that
// fails does not keep the others from it.
func (a *app) each(ids []string, do func(id string) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(id); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintln(a.stdout, id)
	}
	return errors.Join(errs...)
}
