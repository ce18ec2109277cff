package gateway

import (
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/volume"
)

// volumeServer serves a directory as every volume, until the test ends.
func volumeServer(t *testing.T) core.Endpoint {
	t.Helper()
	dir := t.TempDir()
	address := filepath.Join(shortDir(t), "v.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	v := volume.NewServer(volume.ServerOptions{Dir: func(string, []byte) (string, error) { return dir, nil }})
	s := grpc.NewServer()
	v.Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
		v.Close()
	})
	return core.Endpoint{Kind: core.EndpointUnix, Address: address, Session: "w"}
}

func TestVolumesKeepOneClient(t *testing.T) {
	e := volumeServer(t)
	v := newVolumes("", logging.OrDiscard(nil))
	defer v.close()
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if err := v.Recall(t.Context(), "w", e); err != nil {
				t.Errorf("Recall: %v", err)
			}
			ev, err := v.Barrier(t.Context(), "w", e)
			if err != nil || ev.Session != "w" || ev.Boot == "" {
				t.Errorf("Barrier: got %+v, %v", ev, err)
			}
		})
	}
	calls.Wait()
	if n := len(v.clients); n != 1 {
		t.Errorf("%d clients for one workspace", n)
	}
}

func TestVolumesFollowTheEndpoint(t *testing.T) {
	v := newVolumes("", logging.OrDiscard(nil))
	defer v.close()
	var boots []string
	for range 2 {
		ev, err := v.Barrier(t.Context(), "w", volumeServer(t))
		if err != nil {
			t.Fatal(err)
		}
		boots = append(boots, ev.Boot)
	}
	if boots[0] == boots[1] {
		t.Error("the second endpoint was not asked")
	}
	v.forget("w")
	if n := len(v.clients); n != 0 {
		t.Errorf("%d clients after forget", n)
	}
}

func TestVolumesFailAndRecover(t *testing.T) {
	v := newVolumes("", logging.OrDiscard(nil))
	gone := core.Endpoint{Kind: core.EndpointUnix, Address: filepath.Join(shortDir(t), "none.sock"), Session: "w"}
	if err := v.Recall(t.Context(), "w", gone); err == nil {
		t.Error("Recall at a server that is not there succeeded")
	}
	if err := v.Recall(t.Context(), "w", volumeServer(t)); err != nil {
		t.Errorf("after that: %v", err)
	}
	v.close()
	if err := v.Recall(t.Context(), "w", gone); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("after close: got %v, want ErrNotAvailable", err)
	}
}
