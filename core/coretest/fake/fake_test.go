package fake_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/core/coretest"
	"github.com/yaoapp/sbgw/core/coretest/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	skip := map[string]string{
		"lifecycle/stop_grace": "a fake box is killed at once",
		"files/read_only":      "a fake box has no mounts of its own",
	}
	if os.Geteuid() != 0 {
		skip["exec/user"] = "another user needs root"
	}
	dir := t.TempDir()
	coretest.Run(t, coretest.Harness{
		Open: func(t *testing.T) core.Backend {
			b, err := fake.New().Open(t.Context(), core.PoolConfig{Name: "p", StateDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Files: coretest.DirFiles,
		Image: fake.Image,
		Skip:  skip,
	})
}
