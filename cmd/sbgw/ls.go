package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
)

func newLs(a *app) *cobra.Command {
	var o core.ListOptions
	var labels []string
	var out output
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List boxes",
		Args:  exactly(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) (err error) {
			if err := out.check(); err != nil {
				return err
			}
			if o.Labels, err = keyValues("--label", labels); err != nil {
				return err
			}
			boxes, err := c.List(cmd.Context(), o)
			if err != nil {
				return err
			}
			views := make([]boxView, len(boxes))
			for i, b := range boxes {
				views[i] = viewBox(b)
			}
			return out.print(a.stdout, views, func(w io.Writer) { listBoxes(w, views) })
		}),
	}
	cmd.Flags().StringVar(&o.Owner, "owner", "", "only boxes of this owner")
	cmd.Flags().StringVar(&o.Pool, "pool", "", "only boxes of this pool")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only boxes with this label, KEY=value; may be repeated")
	out.add(cmd)
	return cmd
}

func listBoxes(w io.Writer, views []boxView) {
	fmt.Fprintln(w, "ID\tPOOL\tSTATUS\tAGE\tWORKSPACE\tPATH")
	for _, v := range views {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", v.ID, v.Pool, v.Status, age(v.CreatedAt), orDash(v.Workspace), orDash(v.Path))
	}
}
