package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/core/coretest/fake"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/wire"
)

// The test binary is also what the tests run: roleVar tells which part it plays.
const roleVar = "SBGW_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "plugin":
		playPlugin()
	case "host":
		playHost()
	default:
		goleak.VerifyTestMain(m)
	}
}

// playPlugin is a real plugin process with the fake driver.
func playPlugin() {
	log := logging.ForPlugin(os.Stderr, slog.LevelDebug)
	log.Info("fake plugin starts", "answer", 42)
	wire.Serve(fake.New(), log)
}

// playHost is a gateway with one pool, which waits to be killed.
func playHost() {
	l := New(Options{Dir: os.Args[1], StateDir: os.Args[2]})
	if _, err := l.Open(context.Background(), fakePool("p")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Plugins()[0].PID)
	<-time.After(time.Minute)
}

func fakePool(name string) core.Pool {
	return core.Pool{Name: name, Addr: "here", Plugin: "fake"}
}

// script makes an executable that takes a plugin's place.
func script(t *testing.T, dir, kind, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "plugin-"+kind), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// fakeDir is a plugins folder with a fake plugin under the given kinds.
func fakeDir(t *testing.T, kinds ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, k := range kinds {
		script(t, dir, k, roleVar+"=plugin exec "+self)
	}
	return dir
}

// shortDir is a temporary directory whose path leaves room for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sbl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// launcher is shut down when the test ends.
func launcher(t *testing.T, o Options) *Launcher {
	t.Helper()
	if o.StateDir == "" {
		o.StateDir = shortDir(t)
	}
	l := New(o)
	t.Cleanup(l.Shutdown)
	return l
}

// open opens a pool of the fake plugin.
func open(t *testing.T, l *Launcher, name string) core.Backend {
	t.Helper()
	b, err := l.Open(t.Context(), fakePool(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// eventually polls until ok.
func eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s did not come true within %s", what, limit)
		}
	}
}
