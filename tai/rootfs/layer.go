package rootfs

import (
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Layer is one lower layer: a mount of the machine that gets an overlay of its
// own at the same place. An overlay does not cross mounts.
type Layer struct {
	// Lower is the mount point, "/" for the root.
	Lower string
	Masks []Mask
}

// systemDirs are the places where programs live. A mount of the machine at or
// below one of them is a layer; mounts elsewhere are not seen by boxes.
var systemDirs = []string{"/usr", "/opt", "/nix", "/bin", "/sbin"}

// notFiles are file systems that never hold programs, or that would tie a box to
// a process of the machine.
var notFiles = []string{"autofs", "cgroup", "cgroup2", "devpts", "devtmpfs", "fuse", "mqueue", "proc", "sysfs", "tmpfs"}

// Layers returns the lower layers that the mount table calls for, the root first,
// with every mask in the layer it belongs to.
func Layers(mounts []*mountinfo.Info, masks []Mask) []Layer {
	layers := []Layer{{Lower: "/"}}
	at := map[string]int{"/": 0}
	for _, m := range mounts {
		if _, known := at[m.Mountpoint]; known || !isSystem(m) || masked(m.Mountpoint, masks) {
			continue
		}
		at[m.Mountpoint] = len(layers)
		layers = append(layers, Layer{Lower: m.Mountpoint})
	}
	for _, mask := range masks {
		i := 0
		for p := path.Dir(mask.Path); p != "/"; p = path.Dir(p) {
			if n, ok := at[p]; ok {
				i = n
				break
			}
		}
		layers[i].Masks = append(layers[i].Masks, mask)
	}
	return layers
}

func isSystem(m *mountinfo.Info) bool {
	base, _, _ := strings.Cut(m.FSType, ".")
	if slices.Contains(notFiles, base) {
		return false
	}
	for _, dir := range systemDirs {
		if Within(m.Mountpoint, dir) {
			return true
		}
	}
	return strings.HasPrefix(m.Mountpoint, "/lib")
}

func masked(p string, masks []Mask) bool {
	for _, m := range masks {
		if Within(p, m.Path) {
			return true
		}
	}
	return false
}

// Aliases returns every path that shows the same directory as p does: with bind
// mounts, hiding one of them hides nothing.
func Aliases(mounts []*mountinfo.Info, p string) []string {
	home := mountOf(mounts, p)
	if home == nil {
		return []string{p}
	}
	inside := path.Join(home.Root, strings.TrimPrefix(p, home.Mountpoint))
	found := []string{p}
	for _, m := range mounts {
		if m.Major != home.Major || m.Minor != home.Minor || !Within(inside, m.Root) {
			continue
		}
		alias := path.Join(m.Mountpoint, strings.TrimPrefix(inside, m.Root))
		if alias != p {
			found = append(found, alias)
		}
	}
	return found
}

// mountOf returns the mount that p is on: the last one of the longest mount point.
func mountOf(mounts []*mountinfo.Info, p string) *mountinfo.Info {
	var best *mountinfo.Info
	for _, m := range mounts {
		if Within(p, m.Mountpoint) && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	return best
}
