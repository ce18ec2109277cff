package client

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDialTellsWhy(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "sbc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	tests := []struct {
		name, addr string
		want       error
	}{
		{"nobody there", "unix://" + filepath.Join(dir, "none.sock"), core.ErrUnavailable},
		{"nobody answers", "unix://" + stale, core.ErrUnavailable},
		{"relative", "unix://g.sock", core.ErrInvalid},
		{"other scheme", "tcp://127.0.0.1:1", core.ErrInvalid},
		{"empty", "", core.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Dial(tt.addr)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("Dial(%q): got %v, want %v", tt.addr, err, tt.want)
			}
		})
	}
}
