package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
)

func newRun(a *app) *cobra.Command {
	var box boxFlags
	var f execFlags
	var keep bool
	var id string
	cmd := &cobra.Command{
		Use:   "run [flags] CMD [ARG…]",
		Short: "Make a box, run a command in it, and delete it; exits with the command's code",
		Args:  atLeast("CMD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial()
			if err != nil {
				return notStarted(err)
			}
			defer c.Close()
			b, made, err := box.create(cmd.Context(), c, id)
			if err != nil {
				return notStarted(err)
			}
			err = a.exec(cmd.Context(), b, args, f)
			if keep {
				a.say("kept: box %s, workspace %s", b.ID(), b.WorkspaceID())
				return err
			}
			return joinCode(err, a.tidy(cmd.Context(), c, b, made))
		},
	}
	cmd.Flags().SetInterspersed(false)
	box.add(cmd)
	f.add(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the box and its workspace")
	cmd.Flags().StringVar(&id, "id", "", "the box's id (default: a new one)")
	return cmd
}

// tidy deletes the box, and the workspace that was made for it.
func (a *app) tidy(ctx context.Context, c *client.Client, b *client.Box, made bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := b.Remove(ctx); err != nil {
		return err
	}
	if !made {
		return nil
	}
	return c.DeleteWorkspace(ctx, b.WorkspaceID())
}

// joinCode adds to how a command ended what went wrong after it; the code stays
// the command's.
func joinCode(ended, after error) error {
	if after == nil {
		return ended
	}
	if e, ok := errors.AsType[*exitStatus](ended); ok {
		return &exitStatus{code: e.code, err: errors.Join(e.err, after)}
	}
	return errors.Join(ended, after)
}
