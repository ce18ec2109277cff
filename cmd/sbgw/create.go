package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

// defaultImage is the machine's own root file system, read-only under an overlay.
const defaultImage = "host"

// cleanupTimeout bounds how long a command tidies up after itself.
const cleanupTimeout = 30 * time.Second

func newCreate(a *app) *cobra.Command {
	var o boxFlags
	var out output
	cmd := &cobra.Command{
		Use:   "create [ID]",
		Short: "Make and start a box, and a workspace unless one is named; prints the box's id",
		Args:  optional("ID"),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			id := ""
			if len(args) == 1 {
				if id = args[0]; id == "" {
					return usage("the box's id is empty")
				}
			}
			box, _, err := o.create(cmd.Context(), c, id)
			if err != nil {
				return err
			}
			return out.print(a.stdout, viewBox(box), func(w io.Writer) { fmt.Fprintln(w, box.ID()) })
		}),
	}
	o.add(cmd)
	out.add(cmd)
	return cmd
}

// boxFlags are the flags of create and run that describe a box.
type boxFlags struct {
	options core.CreateOptions
	policy  string
	labels  []string
	env     []string
	publish []string
	memory  string
	ro      bool
}

func (f *boxFlags) add(cmd *cobra.Command) {
	o, fs := &f.options, cmd.Flags()
	fs.StringVar(&o.Pool, "pool", "", "pool (default: the workspace's, else the first)")
	fs.StringVar(&o.Image, "image", defaultImage, "image; host is this machine's own root file system, read-only")
	fs.StringVar(&o.Owner, "owner", "", "who the box belongs to")
	fs.StringVar(&o.WorkspaceID, "workspace", "", "workspace to use (default: a new one)")
	fs.StringVarP(&o.WorkDir, "workdir", "w", "", "where commands start (default "+core.DefaultWorkDir+")")
	fs.StringVarP(&o.User, "user", "u", "", "user of the box's processes, name or uid, with :group")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "environment, KEY=value; may be repeated")
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label, KEY=value; may be repeated")
	fs.StringArrayVarP(&f.publish, "publish", "p", nil, "port of the box to publish, [HOST:]PORT[/udp]")
	fs.StringVarP(&f.memory, "memory", "m", "", "memory limit, such as 512m or 2g")
	fs.Float64Var(&o.CPUs, "cpus", 0, "CPU limit in cores")
	fs.StringVar(&f.policy, "policy", "", "oneshot, session (default), longrunning or persistent")
	fs.DurationVar(&o.IdleTimeout, "idle-timeout", 0, "how long nobody may use the box before its policy applies (default: the pool's)")
	fs.DurationVar(&o.StopTimeout, "stop-timeout", 0, "how long the box has to stop by itself (default: the pool's)")
	fs.StringVar(&o.MountPath, "mount-path", "", "where the workspace is in the box (default "+core.DefaultWorkDir+")")
	fs.BoolVar(&f.ro, "read-only", false, "mount the workspace read-only in the box")
	fs.BoolVar(&o.VNC, "vnc", false, "with a desktop")
}

// create makes the box. made tells that a workspace was made for it.
func (f *boxFlags) create(ctx context.Context, c *client.Client, id string) (box *client.Box, made bool, err error) {
	o, err := f.parse()
	if err != nil {
		return nil, false, err
	}
	o.ID = id
	if o.WorkspaceID == "" {
		w, err := c.CreateWorkspace(ctx, workspace.Options{Owner: workspace.Owner(o.Owner), Pool: workspace.PoolName(o.Pool)})
		if err != nil {
			return nil, false, err
		}
		o.WorkspaceID, made = string(w.ID), true
	}
	box, err = c.Create(ctx, o)
	if err != nil && made {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if derr := c.DeleteWorkspace(ctx, o.WorkspaceID); derr != nil {
			err = fmt.Errorf("%w (and workspace %s, made for it, stays: %v)", err, o.WorkspaceID, derr)
		}
	}
	return box, made, err
}

func (f *boxFlags) parse() (core.CreateOptions, error) {
	o := f.options
	o.Policy = core.LifecyclePolicy(f.policy)
	if f.ro {
		o.MountMode = "ro"
	}
	var err error
	if o.Env, err = keyValues("--env", f.env); err != nil {
		return o, err
	}
	if o.Labels, err = keyValues("--label", f.labels); err != nil {
		return o, err
	}
	if f.memory != "" {
		if o.Memory, err = parseSize(f.memory); err != nil {
			return o, err
		}
	}
	for _, p := range f.publish {
		m, err := parsePort(p)
		if err != nil {
			return o, err
		}
		o.Ports = append(o.Ports, m)
	}
	return o, nil
}

// parseSize reads bytes with an optional unit of 1024, as in 512m.
func parseSize(s string) (int64, error) {
	units := map[byte]int64{'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}
	digits, unit := s, int64(1)
	if u, ok := units[s[len(s)-1]|0x20]; ok {
		digits, unit = s[:len(s)-1], u
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)/unit {
		return 0, usage("size %q: need a number with k, m, g or t, such as 512m", s)
	}
	return n * unit, nil
}

// parsePort reads [HOST:]PORT[/protocol].
func parsePort(s string) (core.PortMapping, error) {
	ports, protocol, _ := strings.Cut(s, "/")
	host, box, both := strings.Cut(ports, ":")
	if !both {
		host, box = "0", ports
	}
	h, herr := strconv.ParseUint(host, 10, 16)
	b, berr := strconv.ParseUint(box, 10, 16)
	if herr != nil || berr != nil || b == 0 || protocol != "" && protocol != "tcp" && protocol != "udp" {
		return core.PortMapping{}, usage("port %q: need [HOST:]PORT[/tcp|/udp]", s)
	}
	return core.PortMapping{ContainerPort: int(b), HostPort: int(h), Protocol: protocol}, nil
}
