package gateway

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yaoapp/sbgw/core"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

func (s *service) GetStatus(ctx context.Context, _ *gatewayv1.GetStatusRequest) (*gatewayv1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	g := s.g
	m := &gatewayv1.GetStatusResponse{
		Version: g.version, Pid: int64(os.Getpid()), StartedAt: timestamppb.New(g.started),
		StateDir: g.conf.Gateway.StateDir, MountRoot: g.conf.Mount.Root, MountdPid: int64(g.mounts.pid()),
	}
	var reasons []string
	select {
	case <-g.ready:
	default:
		reasons = append(reasons, "starting")
	}
	m.Pools = g.poolStatus(ctx)
	for _, p := range m.GetPools() {
		if !p.GetConnected() {
			reasons = append(reasons, fmt.Sprintf("pool %s: %s", p.GetName(), p.GetReason()))
		}
	}
	for _, p := range g.launcher.Plugins() {
		m.Plugins = append(m.Plugins, &gatewayv1.Plugin{
			Kind: p.Kind, Path: p.Path, Pid: int64(p.PID), Version: p.Version, State: p.State, Reason: p.Reason,
			Restarts: int32(p.Restarts),
		})
	}
	mounts, err := g.mounts.Mounts(ctx)
	if err != nil {
		reasons = append(reasons, fmt.Sprintf("mount process: %v", err))
	}
	for _, mt := range mounts {
		m.Mounts = append(m.Mounts, &gatewayv1.Mount{
			Workspace: string(mt.Workspace), Path: mt.Path, Link: mt.Link, OpenFiles: uint64(mt.OpenFiles), Errors: mt.Errors,
		})
	}
	m.Ready, m.Reason = len(reasons) == 0, strings.Join(reasons, "; ")
	return m, nil
}

// poolStatus asks every pool that is connected what it is.
func (g *Gateway) poolStatus(ctx context.Context) []*gatewayv1.Pool {
	infos := g.manager.Pools()
	pools := make([]*gatewayv1.Pool, len(infos))
	var work sync.WaitGroup
	for i, info := range infos {
		work.Go(func() { pools[i] = g.describePool(ctx, info) })
	}
	work.Wait()
	return pools
}

func (g *Gateway) describePool(ctx context.Context, info core.PoolInfo) *gatewayv1.Pool {
	p := &gatewayv1.Pool{
		Name: info.Name, Addr: info.Addr, Connected: info.Connected, Reason: info.Reason, Boxes: int32(info.Boxes),
		MaxPerUser: int32(info.MaxPerUser), MaxTotal: int32(info.MaxTotal),
	}
	if !info.Connected {
		return p
	}
	d, err := g.manager.Describe(ctx, info.Name)
	if err != nil {
		p.Connected, p.Reason = false, err.Error()
		return p
	}
	p.Node, p.Runtime, p.Network = d.Node, strings.TrimSpace(d.Runtime+" "+d.RuntimeVersion), d.Network
	return p
}
