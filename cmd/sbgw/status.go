package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

func newStatus(a *app) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the gateway, its pools, plugins and mounts are doing",
		Args:  exactly(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			st, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			return out.print(a.stdout, viewStatus(st), func(w io.Writer) { showStatus(w, st) })
		}),
	}
	out.add(cmd)
	return cmd
}

// statusView is the status as JSON; fields are only added.
type statusView struct {
	Ready     bool         `json:"ready"`
	Reason    string       `json:"reason,omitempty"`
	Version   string       `json:"version"`
	PID       int64        `json:"pid"`
	StartedAt time.Time    `json:"started_at"`
	StateDir  string       `json:"state_dir"`
	MountRoot string       `json:"mount_root"`
	MountdPID int64        `json:"mountd_pid"`
	Pools     []poolView   `json:"pools"`
	Plugins   []pluginView `json:"plugins"`
	Mounts    []mountView  `json:"mounts"`
}

type poolView struct {
	Name       string `json:"name"`
	Addr       string `json:"addr"`
	Connected  bool   `json:"connected"`
	Reason     string `json:"reason,omitempty"`
	Boxes      int32  `json:"boxes"`
	MaxPerUser int32  `json:"max_per_user"`
	MaxTotal   int32  `json:"max_total"`
	Node       string `json:"node"`
	Runtime    string `json:"runtime"`
	Network    string `json:"network"`
}

type pluginView struct {
	Kind     string `json:"kind"`
	Path     string `json:"path"`
	PID      int64  `json:"pid"`
	Version  string `json:"version"`
	State    string `json:"state"`
	Reason   string `json:"reason,omitempty"`
	Restarts int32  `json:"restarts"`
}

type mountView struct {
	Workspace string   `json:"workspace"`
	Path      string   `json:"path"`
	Link      string   `json:"link"`
	OpenFiles uint64   `json:"open_files"`
	Errors    []string `json:"errors,omitempty"`
}

func viewStatus(st *gatewayv1.GetStatusResponse) statusView {
	v := statusView{
		Ready: st.GetReady(), Reason: st.GetReason(), Version: st.GetVersion(), PID: st.GetPid(),
		StartedAt: st.GetStartedAt().AsTime(), StateDir: st.GetStateDir(), MountRoot: st.GetMountRoot(), MountdPID: st.GetMountdPid(),
		Pools: []poolView{}, Plugins: []pluginView{}, Mounts: []mountView{},
	}
	for _, p := range st.GetPools() {
		v.Pools = append(v.Pools, poolView{
			Name: p.GetName(), Addr: p.GetAddr(), Connected: p.GetConnected(), Reason: p.GetReason(), Boxes: p.GetBoxes(),
			MaxPerUser: p.GetMaxPerUser(), MaxTotal: p.GetMaxTotal(), Node: p.GetNode(), Runtime: p.GetRuntime(), Network: p.GetNetwork(),
		})
	}
	for _, p := range st.GetPlugins() {
		v.Plugins = append(v.Plugins, pluginView{
			Kind: p.GetKind(), Path: p.GetPath(), PID: p.GetPid(), Version: p.GetVersion(), State: p.GetState(),
			Reason: p.GetReason(), Restarts: p.GetRestarts(),
		})
	}
	for _, m := range st.GetMounts() {
		v.Mounts = append(v.Mounts, mountView{
			Workspace: m.GetWorkspace(), Path: m.GetPath(), Link: m.GetLink(), OpenFiles: m.GetOpenFiles(), Errors: m.GetErrors(),
		})
	}
	return v
}

// showStatus prints a line for each part; what is wrong with it stands below it.
func showStatus(w io.Writer, st *gatewayv1.GetStatusResponse) {
	ready := "ready"
	if !st.GetReady() {
		ready = "not ready"
	}
	fmt.Fprintf(w, "gateway\t%s\tpid %d, version %s, up %s\n", ready, st.GetPid(), st.GetVersion(), age(st.GetStartedAt().AsTime()))
	fmt.Fprintf(w, "mounts\t%s\tpid %d, root %s, state %s\n", upDown(st.GetMountdPid() != 0), st.GetMountdPid(), st.GetMountRoot(), st.GetStateDir())
	for _, p := range st.GetPools() {
		fmt.Fprintf(w, "pool %s\t%s\t%s, %d boxes%s\n", p.GetName(), upDown(p.GetConnected()), p.GetAddr(), p.GetBoxes(), poolFacts(p))
	}
	for _, p := range st.GetPlugins() {
		fmt.Fprintf(w, "plugin %s\t%s\tpid %d, version %s, %d restarts\n", p.GetKind(), p.GetState(), p.GetPid(), p.GetVersion(), p.GetRestarts())
	}
	for _, m := range st.GetMounts() {
		fmt.Fprintf(w, "mount %s\t%s\t%s, %d open files\n", m.GetWorkspace(), m.GetLink(), m.GetPath(), m.GetOpenFiles())
	}
	for _, line := range complaints(st) {
		fmt.Fprintf(w, "\n%s\n", line)
	}
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// complaints are what is wrong, and with what.
func complaints(st *gatewayv1.GetStatusResponse) []string {
	var lines []string
	if !st.GetReady() {
		lines = append(lines, "not ready: "+st.GetReason())
	}
	for _, p := range st.GetPlugins() {
		if p.GetReason() != "" {
			lines = append(lines, "plugin "+p.GetKind()+": "+p.GetReason())
		}
	}
	for _, m := range st.GetMounts() {
		for _, e := range m.GetErrors() {
			lines = append(lines, "mount "+m.GetWorkspace()+": "+e)
		}
	}
	return lines
}

func poolFacts(p *gatewayv1.Pool) string {
	var facts strings.Builder
	for _, f := range []struct{ name, value string }{{"node", p.GetNode()}, {"runtime", p.GetRuntime()}, {"network", p.GetNetwork()}} {
		if f.value != "" {
			facts.WriteString(", " + f.name + " " + f.value)
		}
	}
	return facts.String()
}
