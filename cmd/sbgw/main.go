// Command sbgw is the gateway and its command line: `sbgw serve` is the daemon,
// `sbgw mountd` the process of its mounts, and the other commands talk to a
// running gateway. Results go to stdout, words to stderr; docs/cli.md has the
// exit codes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

// run runs one command and returns the exit code.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if message := messageOf(err); message != "" {
		fmt.Fprintln(os.Stderr, "sbgw: "+message)
	}
	return exitCode(err)
}
