package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
)

// shortDir is a temporary directory whose sockets have short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sbg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestListen(t *testing.T) {
	path := filepath.Join(shortDir(t), "run", "sbgw.sock")
	l, err := listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", info.Mode(), err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	second, err := listen(path, -1)
	if err == nil {
		second.Close()
	}
	if !errors.Is(err, core.ErrConflict) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("socket in use: got %v, want ErrConflict that names our pid", err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end the socket is there: %v", err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "sbgw.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	l, err := listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestListenLeavesFilesAlone(t *testing.T) {
	path := filepath.Join(shortDir(t), "precious")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path, -1); !errors.Is(err, core.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "x" {
		t.Errorf("the file has %q, %v", data, err)
	}
}

func TestAdmit(t *testing.T) {
	tests := []struct {
		name string
		uid  int
		sudo int
		ok   bool
	}{
		{"own", os.Geteuid(), -1, true},
		{"root", 0, -1, true},
		{"sudo", 4711, 4711, true},
		{"other", 4712, 4711, false},
		{"nobody called sudo", 65534, -1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: caller{uid: tt.uid}})
			err := grpcerr.From(admit{sudo: tt.sudo}.check(ctx))
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, core.ErrPermission) {
				t.Errorf("uid %d: got %v, want admitted %v", tt.uid, err, tt.ok)
			}
		})
	}
	if err := (admit{}).check(context.Background()); err == nil {
		t.Error("a caller without credentials was admitted")
	}
}
