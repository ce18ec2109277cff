package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/workspace"
)

func newWorkspace(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "workspace",
		Aliases: []string{"ws"},
		Short:   "Make, list and delete workspaces",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; `sbgw workspace --help` lists them", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newWorkspaceCreate(a), newWorkspaceLs(a), newWorkspaceRm(a))
	return cmd
}

func newWorkspaceCreate(a *app) *cobra.Command {
	var o workspace.Options
	var pool, owner string
	var labels []string
	var out output
	cmd := &cobra.Command{
		Use:   "create [ID]",
		Short: "Make a workspace; prints its id",
		Args:  optional("ID"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) (err error) {
			if err := out.check(); err != nil {
				return err
			}
			if len(args) == 1 {
				if o.ID = workspace.ID(args[0]); o.ID == "" {
					return usage("the workspace's id is empty")
				}
			}
			o.Pool, o.Owner = workspace.PoolName(pool), workspace.Owner(owner)
			if o.Labels, err = keyValues("--label", labels); err != nil {
				return err
			}
			ws, err := c.CreateWorkspace(cmd.Context(), o)
			if err != nil {
				return err
			}
			return out.print(a.stdout, viewWorkspace(ws), func(w io.Writer) { fmt.Fprintln(w, ws.ID) })
		}),
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "what people call it")
	cmd.Flags().StringVar(&pool, "pool", "", "pool it is bound to (default: the first)")
	cmd.Flags().StringVar(&owner, "owner", "", "who it belongs to")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label, KEY=value; may be repeated")
	out.add(cmd)
	return cmd
}

func newWorkspaceLs(a *app) *cobra.Command {
	var pool, owner string
	var out output
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List workspaces",
		Args:  exactly(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			list, err := c.ListWorkspaces(cmd.Context(), workspace.Filter{Owner: workspace.Owner(owner), Pool: workspace.PoolName(pool)})
			if err != nil {
				return err
			}
			views := make([]workspaceView, len(list))
			for i, w := range list {
				views[i] = viewWorkspace(w)
			}
			return out.print(a.stdout, views, func(w io.Writer) { listWorkspaces(w, views) })
		}),
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only workspaces of this pool")
	cmd.Flags().StringVar(&owner, "owner", "", "only workspaces of this owner")
	out.add(cmd)
	return cmd
}

func listWorkspaces(w io.Writer, views []workspaceView) {
	fmt.Fprintln(w, "ID\tPOOL\tSTATUS\tAGE\tBOXES\tPATH")
	for _, v := range views {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", v.ID, v.Pool, v.Status, age(v.CreatedAt), len(v.Boxes), orDash(v.Path))
	}
}

func newWorkspaceRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm WORKSPACE…",
		Short: "Delete workspaces with all their files",
		Args:  atLeast("WORKSPACE"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.each(args, func(id string) error { return c.DeleteWorkspace(cmd.Context(), id) })
		}),
	}
}
