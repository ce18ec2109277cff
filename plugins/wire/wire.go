// Package wire makes a plugin process out of a core.Driver, and a core.Driver
// out of a connection to such a process. Serve is the whole main of a plugin:
//
//	func main() { wire.Serve(tai.New(log), log) }
//
// A process serves two services: sbgw.plugin.v1.DriverService (server.go here,
// with Client as its other end) and sbgw.box.v1.BoxService (internal/boxrpc) for
// every pool that the first one opened. Handshake, sockets and mutual TLS are
// go-plugin's; on the plugin's side only this package knows it.
//
// A plugin lives no longer than its gateway: it reads a pipe that the gateway
// holds the other end of, and exits at end-of-file, whatever ended the gateway.
package wire

import (
	"context"
	"log/slog"
	"os"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/steady"
)

// PipeVar names the environment variable with the number of the descriptor whose
// end-of-file tells a plugin that its gateway is gone. Without it nothing is
// watched: another host of go-plugin may run a plugin of ours.
const PipeVar = "SBGW_PLUGIN_PIPE"

// pluginName is the name both sides dispense by; there is one plugin a process.
const pluginName = "driver"

// Handshake is what both sides must agree on before anything else. The version
// changes only when old and new can't talk at all; the rest is negotiated by
// core.APIVersion.
var Handshake = goplugin.HandshakeConfig{
	ProtocolVersion:  1,
	MagicCookieKey:   "SBGW_PLUGIN",
	MagicCookieValue: "b6b8a1e2-sbgw-driver",
}

// Serve serves d to the gateway that started this process, and returns when the
// gateway asks for the end. It must be the last thing that main calls: standard
// output and error are go-plugin's from here on, so log must have been made with
// the original os.Stderr (logging.ForPlugin).
func Serve(d core.Driver, log *slog.Logger) {
	log = logging.OrDiscard(log)
	watchGateway(log)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: Handshake,
		Plugins:         goplugin.PluginSet{pluginName: &glue{driver: d, log: log}},
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(maxMessage))...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr, JSONFormat: true}),
	})
}

// maxMessage bounds what is received at once: the list of a big pool.
const maxMessage = 64 << 20

// Plugins returns the plugin set of the gateway's side.
func Plugins() goplugin.PluginSet {
	return goplugin.PluginSet{pluginName: &glue{}}
}

// DialOptions returns the options of the gateway's connection to a plugin.
func DialOptions() []grpc.DialOption {
	return append(steady.DialOptions(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// Dispense returns the driver at the other end of a go-plugin client.
func Dispense(p goplugin.ClientProtocol) (*Client, error) {
	raw, err := p.Dispense(pluginName)
	if err != nil {
		return nil, err
	}
	return raw.(*Client), nil
}

// glue is the driver as go-plugin wants it.
type glue struct {
	goplugin.NetRPCUnsupportedPlugin
	driver core.Driver // nil on the gateway's side
	log    *slog.Logger
}

var _ goplugin.GRPCPlugin = (*glue)(nil)

// GRPCServer registers both services.
func (g *glue) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	Register(s, g.driver, g.log)
	return nil
}

// GRPCClient returns the Client of a connection.
func (g *glue) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return NewClient(c), nil
}
