package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/yaoapp/sbgw/client"
	"github.com/yaoapp/sbgw/internal/config"
)

// app is what commands share.
type app struct {
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer

	addr       string
	configFile string
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sbgw",
		Short: "Boxes for other people's code, with their files under one local directory",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; `sbgw --help` lists them", args[0])
			}
			return cmd.Help()
		},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w; see `%s --help`", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", "", "the gateway's address, unix:///path (default: SBGW_ADDR, else the configuration's)")
	f.StringVar(&a.configFile, "config", "", "configuration file (default: SBGW_CONFIG, ./sbgw.toml, /etc/sbgw/sbgw.toml)")
	root.AddCommand(
		newServe(a), newUp(a), newDown(a), newStatus(a), newMountd(a), newVersion(a),
		newCreate(a), newLs(a), newInfo(a), newExec(a), newRun(a), newStart(a), newStop(a), newRm(a), newPath(a),
		newWorkspace(a),
	)
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// config returns the configuration, with what the functions set over it.
func (a *app) config(flags ...func(*config.Config)) (config.Config, error) {
	c, err := config.Load(config.Find(a.configFile), flags...)
	if err != nil {
		return c, usage("%w", err)
	}
	return c, nil
}

// address returns where the gateway is.
func (a *app) address() (string, error) {
	if a.addr != "" {
		return a.addr, nil
	}
	if addr := os.Getenv("SBGW_ADDR"); addr != "" {
		return addr, nil
	}
	c, err := a.config()
	return c.Gateway.Listen, err
}

func (a *app) dial() (*client.Client, error) {
	addr, err := a.address()
	if err != nil {
		return nil, err
	}
	return client.Dial(addr)
}

// withClient makes a command's function of one that needs a gateway.
func (a *app) withClient(f func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(cmd, c, args)
	}
}

// say prints words for a person.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }

// exactly is cobra.ExactArgs with our exit code and a message that names them.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usage("%d arguments, need %d %v; see `%s --help`", len(args), len(names), names, cmd.CommandPath())
	}
}

// atLeast is for commands with a list at the end.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= len(names) {
			return nil
		}
		return usage("need %v; see `%s --help`", names, cmd.CommandPath())
	}
}

// optional is for commands with at most one argument.
func optional(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return usage("%d arguments, need at most %s; see `%s --help`", len(args), name, cmd.CommandPath())
	}
}
