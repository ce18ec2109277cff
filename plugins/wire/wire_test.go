package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/core/coretest/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect serves a driver over a connection in memory.
func connect(t *testing.T, d core.Driver) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	Register(server, d, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
	})
	return NewClient(conn)
}

// wellness is the fake driver with a pool that may be unwell.
type wellness struct {
	*fake.Driver
	ill atomic.Bool
}

func (w *wellness) Open(ctx context.Context, p core.PoolConfig) (core.Backend, error) {
	b, err := w.Driver.Open(ctx, p)
	return &patient{b, w}, err
}

type patient struct {
	core.Backend
	w *wellness
}

func (p *patient) Describe(ctx context.Context) (core.BackendInfo, error) {
	if p.w.ill.Load() {
		return core.BackendInfo{}, fmt.Errorf("%w: feels ill", core.ErrUnavailable)
	}
	return p.Backend.Describe(ctx)
}

func TestDriver(t *testing.T) {
	c := connect(t, fake.New())
	info, err := c.Describe(t.Context())
	if want := (core.DriverInfo{Kind: fake.Kind, Version: "test", APIVersion: core.APIVersion}); err != nil || info != want {
		t.Errorf("describe: got %+v, %v, want %+v", info, err, want)
	}
	cfg := core.PoolConfig{Name: "p", StateDir: t.TempDir()}
	b, err := c.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context()); err != nil {
		t.Errorf("list: %v", err)
	}
	for range 2 { // the second time it is closed
		if err := c.Close(t.Context(), "p"); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := b.List(t.Context()); !errors.Is(err, core.ErrPoolNotFound) {
		t.Errorf("list of a closed pool: got %v, want kind %q", err, core.ErrPoolNotFound)
	}
	cfg.Options = []byte(`{"colour":1}`)
	if _, err := c.Open(t.Context(), cfg); !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), "colour") {
		t.Errorf("open with an unknown option: got %v, want kind %q naming it", err, core.ErrInvalid)
	}
}

func TestHealth(t *testing.T) {
	d := &wellness{Driver: fake.New()}
	c := connect(t, d)
	if _, err := c.Open(t.Context(), core.PoolConfig{Name: "p", StateDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	beats := make(chan Beat, 16)
	ended := make(chan error, 1)
	go func() { ended <- c.Health(ctx, func(b Beat) { beats <- b }) }()
	next := func(pool bool) Beat {
		for b := range beats {
			if (b.Pool != "") == pool {
				return b
			}
		}
		return Beat{}
	}
	if got, want := next(true), (Beat{Pool: "p"}); got != want {
		t.Errorf("first state: got %+v, want %+v", got, want)
	}
	d.ill.Store(true)
	if got := next(true); got.Pool != "p" || !strings.Contains(got.Reason, "feels ill") {
		t.Errorf("after it fell ill: got %+v", got)
	}
	d.ill.Store(false)
	if got, want := next(true), (Beat{Pool: "p"}); got != want {
		t.Errorf("after it got well: got %+v, want %+v", got, want)
	}
	next(false) // a mere beat
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("health: got %v, want it canceled", err)
	}
}

func TestGatewayPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct{ name, value, want string }{
		{"no number", "three", "not the number"},
		{"standard stream", "1", "not the number"},
		{"not open", "9999", "not a pipe"},
		{"not a pipe", fmt.Sprint(null.Fd()), "not a pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(PipeVar, c.value)
			if _, err := gatewayPipe(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s=%s: got %v, want an error with %q", PipeVar, c.value, err, c.want)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Setenv(PipeVar, "")
		if p, err := gatewayPipe(); p != nil || err != nil {
			t.Errorf("without the variable: got %v, %v", p, err)
		}
	})
}
