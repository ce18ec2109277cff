package oci

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

func TestSpec(t *testing.T) {
	s, err := Spec(Box{
		Spec: core.BoxSpec{ID: "b1", Memory: 1 << 30, CPUs: 1.5, WorkDir: "/w", Cmd: []string{"srv"}},
		User: User{UID: 1000, GID: 1000, Groups: []uint32{7}, Home: "/h"}, Rootfs: "/r", Tool: "/t", Cgroup: "/c",
		Binds: []Bind{{Source: "/v", Target: "/w", ReadOnly: true}}, Host: Features{CgroupV2: true, Seccomp: true, Swap: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Process.Args, []string{"/.sbgw/tai", "exec", "--dir", "/w", "--", "srv"}; !slices.Equal(got, want) {
		t.Errorf("command: got %q, want %q", got, want)
	}
	if len(s.Process.Capabilities.Effective) > 0 || len(s.Process.Capabilities.Bounding) != 14 || !s.Process.NoNewPrivileges {
		t.Errorf("a user's privileges: %+v", s.Process.Capabilities)
	}
	var kinds []specs.LinuxNamespaceType
	for _, ns := range s.Linux.Namespaces {
		kinds = append(kinds, ns.Type)
	}
	if want := []specs.LinuxNamespaceType{"pid", "mount", "ipc", "uts", "network", "cgroup"}; !slices.Equal(kinds, want) {
		t.Errorf("namespaces: got %q, want %q", kinds, want)
	}
	r := s.Linux.Resources
	if *r.Memory.Limit != 1<<30 || *r.Memory.Swap != 1<<30 || *r.CPU.Quota != 150_000 || *r.CPU.Period != 100_000 || *r.Pids.Limit != DefaultPIDs {
		t.Errorf("limits: %+v", r)
	}
	if s.Linux.Seccomp == nil || s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("seccomp: %+v", s.Linux.Seccomp)
	}
	last := s.Mounts[len(s.Mounts)-1]
	if last.Destination != "/w" || !slices.Contains(last.Options, "ro") || !slices.Contains(last.Options, "nosuid") {
		t.Errorf("the volume's mount: %+v", last)
	}
}

func TestSpecWithout(t *testing.T) {
	s, err := Spec(Box{Spec: core.BoxSpec{ID: "b1"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Linux.Seccomp != nil || s.Linux.Resources.Memory != nil || s.Linux.Resources.CPU != nil {
		t.Errorf("limits and filters nobody asked for: %+v", s.Linux)
	}
	if got, want := s.Process.Args, []string{"/.sbgw/tai", "init"}; !slices.Equal(got, want) {
		t.Errorf("keep-alive: got %q, want %q", got, want)
	}
}

func TestEnviron(t *testing.T) {
	b := core.BoxSpec{ID: "b1", Env: []string{"A=box", "PATH=/box"}}
	got := environ(b, core.ExecSpec{Env: []string{"A=exec", "HOME=/x", "B=1=2"}, TTY: true}, User{Home: "/h"})
	want := []string{"PATH=/box", "HOSTNAME=b1", "HOME=/x", "TERM=xterm", "A=exec", "B=1=2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestCgroup(t *testing.T) {
	tests := []struct {
		name  string
		v2    bool
		files map[string]string
		want  []int
	}{
		{"v2", true, map[string]string{
			"sbgw/b1/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
			"sbgw/b1/cgroup.procs":  "1\n15\n",
		}, []int{2, 2}},
		{"v1", false, map[string]string{
			"memory/sbgw/b1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
			"pids/sbgw/b1/cgroup.procs":         "1\n15\n4711\n",
		}, []int{4, 3}},
		{"v1 of an old kernel", false, map[string]string{
			"memory/sbgw/b1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n",
		}, []int{0, 0}},
		{"gone", true, nil, []int{0, 0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			if test.v2 {
				write(t, filepath.Join(root, "cgroup.controllers"), "memory pids\n")
			}
			for name, content := range test.files {
				write(t, filepath.Join(root, name), content)
			}
			if got := IsV2(root); got != test.v2 {
				t.Errorf("IsV2: got %t", got)
			}
			c := Cgroup{Root: root, Path: "/sbgw/b1", V2: test.v2}
			oom, err := c.OOMKills()
			if err != nil || oom != test.want[0] {
				t.Errorf("OOMKills: got %d, %v, want %d", oom, err, test.want[0])
			}
			n, err := c.Processes()
			if err != nil || n != test.want[1] {
				t.Errorf("Processes: got %d, %v, want %d", n, err, test.want[1])
			}
		})
	}
}

func TestCgroupRemove(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"memory/sbgw/b1", "pids/sbgw/b1", "pids/sbgw/b2"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Cgroup{Root: root, Path: "/sbgw/b1"}).Remove(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(root, "*/sbgw/*"))
	if want := []string{filepath.Join(root, "pids/sbgw/b2")}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left: %q, %v, want %q", left, err, want)
	}
}

func TestLookupUser(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "passwd")
	write(t, outside, "evil:x:0:0::/:/bin/sh\n")
	write(t, filepath.Join(dir, "etc/real"), "root:x:0:0::/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\n")
	write(t, filepath.Join(dir, "etc/group"), "ann:x:1001:\nwheel:x:10:ann,bob\n")
	// As the box sees it, /etc/real is its own.
	if err := os.Symlink("/etc/real", filepath.Join(dir, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	tests := []struct {
		name string
		want User
		err  error
	}{
		{"", User{Home: "/root"}, nil},
		{"ann", User{UID: 1000, GID: 1001, Groups: []uint32{10}, Home: "/home/ann"}, nil},
		{"ann:wheel", User{UID: 1000, GID: 10, Home: "/home/ann"}, nil},
		{"4711", User{UID: 4711, Home: "/"}, nil},
		{"4711:12", User{UID: 4711, GID: 12, Home: "/"}, nil},
		{"bob", User{}, core.ErrInvalid},
		{"-5", User{}, core.ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := LookupUser(root, test.name)
			if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.err) {
				t.Errorf("user %q: %v (-want +got):\n%s", test.name, err, diff)
			}
		})
	}
	if err := os.Remove(filepath.Join(dir, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	if got, err := LookupUser(root, "evil"); err == nil {
		t.Errorf("a passwd outside of the box was read: %+v", got)
	}
}

func TestMkdirIn(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../b", filepath.Join(dir, "up")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	me := User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	for _, name := range []string{"/x/y/z", "/x/y/z", "/up/c"} {
		if err := MkdirIn(root, name, me); err != nil {
			t.Errorf("make %s: %v", name, err)
		}
	}
	for _, name := range []string{"x/y/z", "b/c"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || !st.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := MkdirIn(root, "/out/c", me); !errors.Is(err, unix.EEXIST) {
		t.Errorf("below a link out of the box: %v", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
