package main

import (
	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/tai/inbox"
)

func newInit() *cobra.Command {
	return &cobra.Command{
		Use:    "init",
		Short:  "Be the main process of a box",
		Args:   cobra.NoArgs,
		Hidden: true,
		Run:    func(*cobra.Command, []string) { inbox.Init() },
	}
}

func newExec() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "exec --dir DIR -- COMMAND [ARGUMENT]...",
		Short:  "Become a command in a directory of the box",
		Args:   cobra.MinimumNArgs(1),
		Hidden: true,
		RunE:   func(_ *cobra.Command, args []string) error { return inbox.Exec(dir, args) },
	}
	cmd.Flags().StringVar(&dir, "dir", "/", "where to start")
	return cmd
}
