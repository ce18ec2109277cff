// Command tai is the node agent: `tai serve` runs boxes and serves their volumes;
// the other commands are what it starts itself.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/tai/inbox"
)

// version is set by the build.
var version = "dev"

func main() {
	if err := newRoot().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "tai:", err)
		os.Exit(exitCode(err))
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tai",
		Short:         "Run boxes on this machine and serve their files",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newServe(), newShim(), newInit(), newExec(), newVersion())
	return root
}

func exitCode(err error) int {
	if e := (*inbox.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 1
}
