package wire

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxrpc"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	pluginv1 "github.com/yaoapp/sbgw/proto/sbgw/plugin/v1"
)

// Register serves d and its pools on s.
func Register(s grpc.ServiceRegistrar, d core.Driver, log *slog.Logger) {
	srv := &server{driver: d, log: logging.OrDiscard(log), pools: map[core.PoolName]core.Backend{}}
	pluginv1.RegisterDriverServiceServer(s, srv)
	boxrpc.Register(s, srv.backend)
}

// server is DriverService over a driver.
type server struct {
	pluginv1.UnimplementedDriverServiceServer
	driver core.Driver
	log    *slog.Logger

	mu    sync.Mutex
	pools map[core.PoolName]core.Backend
}

func (s *server) backend(p core.PoolName) (core.Backend, error) {
	s.mu.Lock()
	b, ok := s.pools[p]
	s.mu.Unlock()

	if !ok {
		return nil, &poolError{p}
	}
	return b, nil
}

// poolError says that a pool was not opened in this process.
type poolError struct{ pool core.PoolName }

func (e *poolError) Error() string { return core.ErrPoolNotFound.Error() + ": " + string(e.pool) }
func (e *poolError) Unwrap() error { return core.ErrPoolNotFound }

func (s *server) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	info, err := s.driver.Describe(ctx)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	return &pluginv1.DescribeResponse{
		Kind: info.Kind, Version: info.Version, ApiVersion: uint32(info.APIVersion),
	}, nil
}

func (s *server) Open(ctx context.Context, r *pluginv1.OpenRequest) (*pluginv1.OpenResponse, error) {
	p := core.PoolConfig{
		Name: core.PoolName(r.GetPool()), Addr: r.GetAddr(), Options: json.RawMessage(r.GetOptions()),
		StateDir: r.GetStateDir(), Gateway: r.GetGateway(), Hide: r.GetHide(),
	}
	b, err := s.driver.Open(ctx, p)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	s.mu.Lock()
	s.pools[p.Name] = b
	s.mu.Unlock()

	s.log.Debug("pool opened", logging.Pool, p.Name)
	return &pluginv1.OpenResponse{}, nil
}

func (s *server) Close(ctx context.Context, r *pluginv1.CloseRequest) (*pluginv1.CloseResponse, error) {
	name := core.PoolName(r.GetPool())
	s.mu.Lock()
	delete(s.pools, name)
	s.mu.Unlock()

	if err := s.driver.Close(ctx, name); err != nil {
		return nil, grpcerr.To(err)
	}
	return &pluginv1.CloseResponse{}, nil
}
