package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/wire"
)

// stopPatience is how long a plugin may take to exit once its life line is cut.
const stopPatience = 2 * time.Second

// instance is one run of a plugin: a process and the connection to it. It is
// never used again after a failed start or an end.
type instance struct {
	path   string
	info   core.DriverInfo
	driver *wire.Client
	proc   *process
	client *goplugin.Client

	failed  chan error // room for one: why it is to be ended
	started time.Time

	// life ends with the instance; work is what is done for it meanwhile.
	life   context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// start runs the plugin and greets it. The context ends a start under way.
func start(ctx context.Context, kind, path string, o Options) (*instance, error) {
	log := o.Log.With(logging.Plugin, kind)
	sockets, err := socketDir(o.StateDir)
	if err != nil {
		return nil, err
	}
	i := &instance{path: path, failed: make(chan error, 1), proc: newProcess(path, log)}
	i.life, i.cancel = context.WithCancel(ctx)
	i.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		Plugins:          wire.Plugins(),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     o.startTimeout,
		GRPCDialOptions:  wire.DialOptions(),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: sockets},
		Logger:           hclog.NewNullLogger(), // what it would say is said by us
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			i.proc.env = append(environ(o.Env), cmd.Env...)
			return i.proc, nil
		},
	})
	if err := i.greet(ctx, kind, o); err != nil {
		i.stop()
		return nil, err
	}
	i.started = time.Now()
	return i, nil
}

// greet does the handshake and asks the driver who it is.
func (i *instance) greet(ctx context.Context, kind string, o Options) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, i.end)()
	rpc, err := i.client.Client()
	if err != nil {
		return i.foreign(err, time.Since(began), o.startTimeout)
	}
	if i.driver, err = wire.Dispense(rpc); err != nil {
		return err
	}
	if i.info, err = i.driver.Describe(ctx); err != nil {
		return fmt.Errorf("%s does not say who it is: %w", i.path, err)
	}
	if i.info.Kind != kind {
		return fmt.Errorf("%s is a plugin of kind %q, not %q: put the right file there", i.path, i.info.Kind, kind)
	}
	return nil
}

// foreign says what is wrong with a process that did not do the handshake, and
// that go-plugin has killed for it.
func (i *instance) foreign(err error, took, budget time.Duration) error {
	const mend = "replace it by the one of this gateway's build"
	switch {
	case i.proc.number() == 0:
		return fmt.Errorf("%s can't be run: %w", i.path, err)
	case i.proc.greeting.String() != "":
		said := i.proc.greeting.String()
		return fmt.Errorf("%s is not a plugin of this gateway (its first word: %.80q; %s): %s", i.path, said, firstLine(err), mend)
	case took >= budget:
		return fmt.Errorf("%s said nothing within %s: if it is a plugin of this gateway the machine is too busy, else %s", i.path, budget, mend)
	}
	if <-i.proc.exited; i.proc.killedByUs() {
		return fmt.Errorf("%s closed its output before it greeted: %s", i.path, mend)
	}
	return fmt.Errorf("%s ended before it greeted: %s", i.path, i.proc.end())
}

func firstLine(err error) string {
	s := err.Error()
	for n, c := range s {
		if c == '\n' || n > 120 {
			return s[:n]
		}
	}
	return s
}

// fail asks for the instance's end; the first reason counts.
func (i *instance) fail(err error) {
	select {
	case i.failed <- err:
	default:
	}
}

// watch returns when the process has ended or must be, and says why. onBeat gets
// what the plugin tells of its pools.
func (i *instance) watch(limit time.Duration, onBeat func(wire.Beat)) error {
	silent := time.AfterFunc(limit, func() { i.fail(fmt.Errorf("no sign of life for %s", limit)) })
	defer silent.Stop()
	i.work.Go(func() {
		err := i.driver.Health(i.life, func(b wire.Beat) {
			silent.Reset(limit)
			onBeat(b)
		})
		if i.life.Err() == nil {
			i.fail(fmt.Errorf("its health stream ended: %w", err))
		}
	})
	select {
	case <-i.life.Done():
		return i.life.Err()
	case <-i.proc.exited:
		return errors.New(i.proc.end())
	case err := <-i.failed:
		// The connection of a process that died ends a moment before it is reaped,
		// and how it died says more.
		if errors.Is(err, core.ErrPluginGone) && i.exitsWithin(lastWords) {
			return errors.New(i.proc.end())
		}
		return err
	}
}

// exitsWithin tells whether the process ends by itself soon.
func (i *instance) exitsWithin(d time.Duration) bool {
	select {
	case <-i.proc.exited:
		return true
	case <-time.After(d):
		return false
	}
}

// end kills the process, or keeps it from being started.
func (i *instance) end() { i.proc.Kill(context.Background()) }

// stop ends the process, gently first, and frees everything.
func (i *instance) stop() {
	i.cancel()
	defer i.work.Wait()
	if i.proc.number() != 0 {
		i.proc.letGo()
		if !i.exitsWithin(stopPatience) {
			i.end()
			<-i.proc.exited
		}
	}
	i.client.Kill() // of a process that has ended: closes the connection, removes its socket
	if i.proc.number() != 0 {
		i.proc.greeting.Close()
	}
}

// environ is what a plugin gets to see of our environment: where programs and
// temporary files are, and nothing that may hold a secret.
func environ(extra []string) []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return append(env, extra...)
}

// What go-plugin adds to the socket folder's path, and what a socket's path can
// hold (unix(7)).
const (
	socketNames = len("/plugin-dir0000000000/plugin0000000000")
	socketPath  = 107
)

// clearSockets removes what plugins of a killed gateway left. What can't be
// removed is no harm: names are never used again.
func clearSockets(state string) {
	left, _ := filepath.Glob(filepath.Join(state, "plugins", "plugin-dir*")) // the pattern is right
	for _, dir := range left {
		os.RemoveAll(dir)
	}
}

// socketDir returns the folder for the plugins' sockets: in the state directory,
// so that a successor of a killed gateway can clear it, or, where a path there
// would be too long for a socket, the system's.
func socketDir(state string) (string, error) {
	dir, err := filepath.Abs(filepath.Join(state, "plugins"))
	if err != nil {
		return "", err
	}
	if len(dir)+socketNames > socketPath {
		return os.TempDir(), nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder for plugin sockets: %w", err)
	}
	return dir, nil
}
