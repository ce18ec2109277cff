// Package oci turns a box's specification into what an OCI runtime is told
// (https://github.com/opencontainers/runtime-spec), and reads back what the
// kernel counts for a box. Isolation is what Docker's defaults give: its
// capabilities, seccomp profile, device list and masked paths, and no new
// privileges on top.
package oci

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/yaoapp/sbgw/core"
)

// specVersion is the oldest version that has all we use.
const specVersion = "1.0.2"

// ToolPath is where a box finds the tai binary.
const ToolPath = "/.sbgw/tai"

const (
	// DefaultPIDs bounds the processes of a box that asks for no limit.
	DefaultPIDs = 4096
	cpuPeriod   = 100_000 // microseconds
	maxHostname = 63
)

// Box is everything that a runtime is told of a box.
type Box struct {
	Spec core.BoxSpec
	User User
	// Rootfs is the mounted root directory.
	Rootfs string
	// Tool is the tai binary on the machine.
	Tool string
	// Binds are the box's volumes.
	Binds []Bind
	// Cgroup is the box's cgroup path.
	Cgroup string
	Host   Features
}

// Bind shows a directory of the machine in a box.
type Bind struct {
	Source   string
	Target   string
	ReadOnly bool
}

// Features are what the machine's kernel and runtime can do.
type Features struct {
	CgroupV2 bool
	Seccomp  bool
	// Swap: swap space is accounted for and can be limited.
	Swap bool
}

// Spec returns the runtime's configuration of a box.
func Spec(b Box) (*specs.Spec, error) {
	init := core.ExecSpec{Cmd: b.Spec.Cmd}
	process := Process(b.Spec, init, b.User)
	process.Cwd = workDir(b.Spec, "")
	if len(b.Spec.Cmd) == 0 {
		process.Args = []string{ToolPath, "init"}
	}
	s := &specs.Spec{
		Version:  specVersion,
		Process:  process,
		Root:     &specs.Root{Path: b.Rootfs},
		Hostname: Hostname(b.Spec.ID),
		Mounts:   append(baseMounts(), bindMounts(b)...),
		Linux: &specs.Linux{
			CgroupsPath:   b.Cgroup,
			Namespaces:    namespaces(b.Host),
			Resources:     resources(b.Spec, b.Host),
			MaskedPaths:   slices.Clone(maskedPaths),
			ReadonlyPaths: slices.Clone(readonlyPaths),
		},
	}
	if b.Host.Seccomp {
		profile, err := seccomp.GetDefaultProfile(s)
		if err != nil {
			return nil, fmt.Errorf("seccomp profile: %w", err)
		}
		s.Linux.Seccomp = profile
	}
	return s, nil
}

// Hostname is the name of a box on its own machine.
func Hostname(id core.BoxID) string {
	if len(id) > maxHostname {
		return string(id[:maxHostname])
	}
	return string(id)
}

func namespaces(h Features) []specs.LinuxNamespace {
	ns := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
	}
	if h.CgroupV2 {
		ns = append(ns, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return ns
}

func resources(s core.BoxSpec, h Features) *specs.LinuxResources {
	pids := s.PIDs
	if pids == 0 {
		pids = DefaultPIDs
	}
	r := &specs.LinuxResources{Devices: devices(), Pids: &specs.LinuxPids{Limit: &pids}}
	if s.Memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &s.Memory}
		if h.Swap {
			r.Memory.Swap = &s.Memory // memory and swap together: no swap
		}
	}
	if s.CPUs > 0 {
		quota, period := int64(s.CPUs*cpuPeriod), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return r
}

func bindMounts(b Box) []specs.Mount {
	mounts := []specs.Mount{{
		Destination: ToolPath, Source: b.Tool, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
	}}
	for _, bind := range b.Binds {
		mode := "rw"
		if bind.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, specs.Mount{
			Destination: bind.Target, Source: bind.Source, Type: "bind",
			Options: []string{"rbind", mode, "nosuid", "nodev", "rprivate"},
		})
	}
	return mounts
}
