// Package posix runs go-fuse's conformance suite on a mounted volume, whose
// server and mount process are processes of their own.
package posix

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"

	"github.com/yaoapp/sbgw/fusefs/fusetest"
)

func TestMain(m *testing.M) { fusetest.Main(m) }

// notPosix are tests of the suite that fail on any file system, and that its own
// TestAll leaves out.
var notPosix = map[string]string{
	"FcntlFlockLocksFile": "expects two POSIX locks of one process to exclude each other",
}

func TestPosix(t *testing.T) {
	for name, env := range map[string][]string{
		"all processors": nil,
		"one processor":  {"GOMAXPROCS=1"},
	} {
		t.Run(name, func(t *testing.T) {
			m := fusetest.New(t, fusetest.Options{Symlinks: "raw", Owner: "none", Env: env})
			for _, test := range slices.Sorted(maps.Keys(posixtest.All)) {
				t.Run(test, func(t *testing.T) {
					if why := notPosix[test]; why != "" {
						t.Skip(why)
					}
					dir := filepath.Join(m.Path, test)
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					posixtest.All[test](t, dir)
					if err := os.RemoveAll(dir); err != nil {
						t.Errorf("remove what the test made: %v", err)
					}
				})
			}
		})
	}
}
