package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

func TestPlan(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"root", "etc/ssh", "data/home", "var/lib/docker/deep", "pool/real", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"etc/shadow", "etc/shadow.org", "etc/ssh/ssh_host_x_key", "pool/file"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"home": "/data/home", "var/run": "../run", "pool/link": "real"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Plan(root, []string{"/pool/link", "/pool/file", "/pool/a/b/c", "/var/lib/docker/deep", "/pool/real/in"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Mask{}
	for _, m := range []Mask{
		{Path: "/root", Dir: true, Mode: 0o700},
		{Path: "/data/home", Dir: true, Mode: 0o750}, // what /home leads to
		{Path: "/run", Dir: true, Mode: 0o755},
		{Path: "/tmp"}, // not there: nothing is to come through
		{Path: "/etc/shadow"}, {Path: "/etc/shadow.org"}, {Path: "/etc/gshadow"}, {Path: "/etc/shadow+"},
		{Path: "/etc/ssh/ssh_host_x_key"}, {Path: "/etc/ssh/ssh_host_rsa_key"},
		{Path: "/etc/ssl"}, // the first missing part of /etc/ssl/private
		{Path: "/var/lib/docker", Dir: true, Mode: 0o750},
		{Path: "/pool/real", Dir: true, Mode: 0o750}, {Path: "/pool/file"}, {Path: "/pool/a"},
	} {
		want[m.Path] = m
	}
	for path, w := range want {
		i := slices.IndexFunc(got, func(m Mask) bool { return m.Path == path })
		if i < 0 {
			t.Errorf("%s is not hidden", path)
			continue
		}
		if got[i] != w {
			t.Errorf("got %+v, want %+v", got[i], w)
		}
	}
	for _, p := range []string{"/var/lib/docker/deep", "/pool/real/in", "/home", "/var/run"} {
		if slices.ContainsFunc(got, func(m Mask) bool { return m.Path == p }) {
			t.Errorf("%s is hidden in vain", p)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	root := t.TempDir()
	for link, target := range map[string]string{"self": "/", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]error{"/": core.ErrInvalid, "x": core.ErrInvalid, "/self": core.ErrInvalid, "/loop": unix.ELOOP} {
		if _, err := Plan(root, []string{path}); !errors.Is(err, want) {
			t.Errorf("hide %s: %v, want %v", path, err, want)
		}
	}
}

func mount(point, root, fstype string, minor int) *mountinfo.Info {
	return &mountinfo.Info{Mountpoint: point, Root: root, FSType: fstype, Major: 8, Minor: minor}
}

func TestLayers(t *testing.T) {
	mounts := []*mountinfo.Info{
		mount("/", "/", "ext4", 1), mount("/proc", "/", "proc", 2), mount("/usr", "/", "xfs", 3),
		mount("/usr/share", "/", "fuse.sshfs", 4), mount("/opt/secret", "/", "ext4", 5), mount("/home", "/", "ext4", 6),
		mount("/lib64", "/", "squashfs", 7), mount("/usr", "/", "xfs", 8),
	}
	got := Layers(mounts, []Mask{{Path: "/etc/shadow"}, {Path: "/opt/secret"}, {Path: "/usr/local/x"}})
	want := []Layer{
		{Lower: "/", Masks: []Mask{{Path: "/etc/shadow"}, {Path: "/opt/secret"}}},
		{Lower: "/usr", Masks: []Mask{{Path: "/usr/local/x"}}},
		{Lower: "/lib64"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

func TestAliases(t *testing.T) {
	mounts := []*mountinfo.Info{
		mount("/", "/", "ext4", 1), mount("/var/lib/sbgw", "/data/sbgw", "ext4", 1), mount("/srv", "/data", "ext4", 1),
		mount("/other", "/data", "ext4", 2),
	}
	got := Aliases(mounts, "/var/lib/sbgw/boxes")
	slices.Sort(got)
	want := []string{"/data/sbgw/boxes", "/srv/sbgw/boxes", "/var/lib/sbgw/boxes"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a box has put in the place of a hidden file stays, and leads nowhere.
func TestApplyMask(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts need root")
	}
	upper, lower, outside := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{"etc/ssl/private", "own", "linked"} {
		if err := os.MkdirAll(filepath.Join(lower, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(lower, "etc/ssl"), os.ModeSetgid|0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(upper, "linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(upper, "own"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as on every start
		for _, m := range []Mask{
			{Path: "/etc/shadow"}, {Path: "/etc/ssl/private", Dir: true, Mode: 0o710},
			{Path: "/own/x"}, {Path: "/linked/x"}, {Path: "/linked", Dir: true, Mode: 0o755},
		} {
			m.Path = filepath.Join(lower, m.Path)
			if err := applyMask(upper, lower, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(upper, "etc/shadow"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("whiteout: %+v, %v", st, err)
	}
	if err := unix.Lstat(filepath.Join(upper, "etc/ssl"), &st); err != nil || st.Mode&0o7777 != 0o2711 {
		t.Errorf("mode of a directory on the way: %o, %v", st.Mode, err)
	}
	value := make([]byte, 8)
	if n, err := unix.Lgetxattr(filepath.Join(upper, "etc/ssl/private"), opaque, value); err != nil || string(value[:n]) != "y" {
		t.Errorf("opaque directory: %q, %v", value[:n], err)
	}
	if data, err := os.ReadFile(filepath.Join(upper, "own")); err != nil || string(data) != "mine" {
		t.Errorf("the box's file: %q, %v", data, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("written through the box's link: %v, %v", left, err)
	}
}
