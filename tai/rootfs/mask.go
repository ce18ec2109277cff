// Package rootfs makes the root file system of a box from that of the machine,
// image `host`: the machine's own files, read-only, under an overlay that has
// what the box writes, and in which everything secret is hidden.
//
// Hiding is done in the overlay's upper layer before it is mounted, by whiteouts
// and opaque directories (Documentation/filesystems/overlayfs.rst, "whiteouts and
// opaque directories"). Nothing needs to be mounted over anything, so root in the
// box has nothing that it could unmount, and what the machine gets later in such
// a place never shows either.
package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

// maxLinks is how many symbolic links are followed in one path, as in Linux.
const maxLinks = 40

// Mask hides a path of the lower layer.
type Mask struct {
	// Path has no symbolic link in it.
	Path string
	// Dir leaves an empty directory with Mode and the owner of the hidden one;
	// otherwise nothing is left.
	Dir  bool
	Mode uint32
}

// emptyDirs are shown as empty directories with these modes; 0 means the mode of
// the directory that is hidden.
var emptyDirs = []struct {
	path string
	mode uint32
}{
	{"/root", 0o700}, {"/home", 0o755}, {"/tmp", 0o1777}, {"/var/tmp", 0o1777},
	{"/run", 0o755}, {"/var/run", 0o755}, {"/mnt", 0o755}, {"/media", 0o755}, {"/boot", 0o755},
}

// secrets are hidden whether they exist or not. What ends with * stands for every
// name in the directory that begins so.
var secrets = []string{
	// shadow(5), its backups, and the names that shadow-utils and pam_unix write
	// before they rename.
	"/etc/shadow", "/etc/shadow-", "/etc/shadow+", "/etc/shadow.edit", "/etc/shadow.lock", "/etc/shadow*",
	"/etc/gshadow", "/etc/gshadow-", "/etc/gshadow+", "/etc/gshadow.edit", "/etc/gshadow.lock", "/etc/gshadow*",
	"/etc/nshadow", "/etc/security/opasswd", "/etc/security/nopasswd",
	"/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_ed25519_key",
	"/etc/ssh/ssh_host_dsa_key", "/etc/ssh/ssh_host_*",
	"/etc/ssl/private", "/etc/krb5.keytab", "/etc/wireguard",
	"/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher",
	"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet",
	"/var/lib/rancher", "/var/lib/cloud",
}

// Plan returns the masks for a lower layer at root: the fixed ones and one for
// every path in hide, none inside of another. Symbolic links are followed within
// root, so that what is hidden is the thing and not only one name of it. A path
// that does not exist yet is hidden from its first missing part on.
func Plan(root string, hide []string) ([]Mask, error) {
	var masks []Mask
	for _, d := range emptyDirs {
		m, err := maskOf(root, d.path)
		if err != nil {
			return nil, err
		}
		if m.Path == d.path && m.Dir {
			m.Mode = d.mode
		}
		masks = append(masks, m)
	}
	paths, err := expand(root, secrets)
	if err != nil {
		return nil, err
	}
	for _, p := range append(paths, hide...) {
		m, err := maskOf(root, p)
		if err != nil {
			return nil, err
		}
		masks = append(masks, m)
	}
	return outermost(masks), nil
}

// expand replaces patterns by the names that match now.
func expand(root string, patterns []string) ([]string, error) {
	var paths []string
	for _, p := range patterns {
		prefix, wild := strings.CutSuffix(p, "*")
		if !wild {
			paths = append(paths, p)
			continue
		}
		dir, base := path.Split(prefix)
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), base) {
				paths = append(paths, dir+e.Name())
			}
		}
	}
	return paths, nil
}

func maskOf(root, p string) (Mask, error) {
	if !path.IsAbs(p) || path.Clean(p) == "/" {
		return Mask{}, core.Invalid("hide %q: not an absolute path below /", p)
	}
	found, st, err := resolve(root, p)
	if err != nil {
		return Mask{}, err
	}
	if found == "/" {
		return Mask{}, core.Invalid("hide %q: it is a link to the root directory", p)
	}
	m := Mask{Path: found}
	if st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		m.Dir, m.Mode = true, st.Mode&0o7777
	}
	return m, nil
}

// resolve follows p inside of root. It returns a path without links, and the
// status of what is there, or nil if that is the first part of p that is missing.
func resolve(root, p string) (string, *unix.Stat_t, error) {
	done, rest, links := "/", split(p), 0
	var st unix.Stat_t
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			done = path.Dir(done)
			continue
		}
		here := path.Join(done, name)
		err := unix.Lstat(filepath.Join(root, here), &st)
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return here, nil, nil
		}
		if err != nil {
			return "", nil, &fs.PathError{Op: "lstat", Path: here, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			done = here
			continue
		}
		if links++; links > maxLinks {
			return "", nil, &fs.PathError{Op: "follow", Path: p, Err: unix.ELOOP}
		}
		target, err := os.Readlink(filepath.Join(root, here))
		if err != nil {
			return "", nil, err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(split(target), rest...)
	}
	if err := unix.Lstat(filepath.Join(root, done), &st); err != nil {
		return "", nil, &fs.PathError{Op: "lstat", Path: done, Err: err}
	}
	return done, &st, nil
}

func split(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." })
}

// outermost sorts masks and drops those inside of another.
func outermost(masks []Mask) []Mask {
	slices.SortStableFunc(masks, func(a, b Mask) int {
		return slices.Compare(split(a.Path), split(b.Path))
	})
	var out []Mask
	for _, m := range masks {
		if n := len(out); n > 0 && Within(m.Path, out[n-1].Path) {
			continue
		}
		out = append(out, m)
	}
	return out
}

// Within tells whether p is dir or below it; both are clean and absolute.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
