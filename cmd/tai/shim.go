package main

import (
	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/tai/shim"
)

func newShim() *cobra.Command {
	var dir string
	var inNamespace bool
	cmd := &cobra.Command{
		Use:    "shim --dir DIR",
		Short:  "Run one box until it ends",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return shim.Main(dir, inNamespace) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the box's directory")
	cmd.Flags().BoolVar(&inNamespace, "in-namespace", false, "the mount namespace is made already")
	cmd.MarkFlagRequired("dir")
	return cmd
}
