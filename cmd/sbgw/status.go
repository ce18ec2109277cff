package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

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
			return out.print(a.stdout, statusView{st}, func(w io.Writer) { showStatus(w, st) })
		}),
	}
	out.add(cmd)
	return cmd
}

// statusView is the status as JSON, by the names of the .proto.
type statusView struct{ *gatewayv1.GetStatusResponse }

func (v statusView) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(v.GetStatusResponse)
}

func showStatus(w io.Writer, st *gatewayv1.GetStatusResponse) {
	ready := "ready"
	if !st.GetReady() {
		ready = "not ready: " + st.GetReason()
	}
	fmt.Fprintf(w, "gateway\t%s\tpid %d, version %s, up %s\n", ready, st.GetPid(), st.GetVersion(), age(st.GetStartedAt().AsTime()))
	fmt.Fprintf(w, "state\t%s\t\n", st.GetStateDir())
	fmt.Fprintf(w, "mounts\t%s\tpid %d, %d mounted\n", st.GetMountRoot(), st.GetMountdPid(), len(st.GetMounts()))
	for _, p := range st.GetPools() {
		state := "connected"
		if !p.GetConnected() {
			state = "not connected: " + p.GetReason()
		}
		fmt.Fprintf(w, "pool %s\t%s\t%s, %d boxes%s\n", p.GetName(), state, p.GetAddr(), p.GetBoxes(), poolFacts(p))
	}
	for _, p := range st.GetPlugins() {
		facts := fmt.Sprintf("pid %d, version %s, %d restarts", p.GetPid(), p.GetVersion(), p.GetRestarts())
		if p.GetReason() != "" {
			facts += ": " + p.GetReason()
		}
		fmt.Fprintf(w, "plugin %s\t%s\t%s\n", p.GetKind(), p.GetState(), facts)
	}
	for _, m := range st.GetMounts() {
		fmt.Fprintf(w, "mount %s\t%s\tlink %s, %d open files", m.GetWorkspace(), m.GetPath(), m.GetLink(), m.GetOpenFiles())
		if len(m.GetErrors()) > 0 {
			fmt.Fprintf(w, ", errors: %s", strings.Join(m.GetErrors(), "; "))
		}
		fmt.Fprintln(w)
	}
}

func poolFacts(p *gatewayv1.Pool) string {
	facts := ""
	for _, f := range []struct{ name, value string }{{"node", p.GetNode()}, {"runtime", p.GetRuntime()}, {"network", p.GetNetwork()}} {
		if f.value != "" {
			facts += ", " + f.name + " " + f.value
		}
	}
	return facts
}
