// Command plugin-tai is the plugin for boxes on tai nodes. A gateway starts it;
// it is of no use by hand.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/tai"
	"github.com/yaoapp/sbgw/plugins/wire"
)

// version is set by the build.
var version = "dev"

func main() {
	if len(os.Args) > 1 {
		if os.Args[1] == "--version" {
			fmt.Println(version)
			return
		}
		fmt.Fprintf(os.Stderr, "plugin-tai: unknown argument %q\n", os.Args[1])
		os.Exit(2)
	}
	log := logging.ForPlugin(os.Stderr, slog.LevelDebug) // the gateway's own level decides
	wire.Serve(tai.New(version, log), log)
}
