package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

// ociRuntime is the OCI runtime that makes the boxes.
type ociRuntime struct {
	name    string
	path    string
	version string
	seccomp bool
}

// findRuntime looks for runc, else crun.
func findRuntime(ctx context.Context) (ociRuntime, error) {
	for _, name := range []string{"runc", "crun"} {
		path, err := lookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return ociRuntime{}, fmt.Errorf("run %s --version: %w", path, err)
		}
		text := string(out)
		first, _, _ := strings.Cut(text, "\n")
		return ociRuntime{
			name: name, path: path,
			version: strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(first, name), " version ")),
			seccomp: kernelHasSeccomp() && (strings.Contains(text, "libseccomp") || strings.Contains(text, "+SECCOMP")),
		}, nil
	}
	return ociRuntime{}, fmt.Errorf("%w: no OCI runtime on this machine: install the package runc or crun", core.ErrUnavailable)
}

// lookPath also finds what is in the system's directories when PATH lacks them.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

func kernelHasSeccomp() bool {
	_, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil
}

// copyTool copies a program, or the running one, into dir under the name of its
// content, so that boxes do not break when it is built anew or deleted.
func copyTool(program, dir string) (string, error) {
	if program == "" {
		program = "/proc/self/exe"
	}
	in, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "tai-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	out, err := os.CreateTemp(dir, ".tai-")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return path, nil
}
