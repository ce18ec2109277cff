package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{core.Invalid("x"), 2},
		{usage("x"), 2},
		{core.ErrNotFound, 3},
		{core.ErrPoolNotFound, 3},
		{core.ErrUnavailable, 4},
		{core.ErrNotAvailable, 4},
		{core.ErrPluginGone, 4},
		{core.ErrConflict, 5},
		{core.ErrPoolInUse, 5},
		{core.ErrNotRunning, 5},
		{core.ErrLimitExceeded, 6},
		{core.ErrUnsupported, 7},
		{core.ErrPermission, 8},
		{os.ErrPermission, 8},
		{context.DeadlineExceeded, 124},
		{notStarted(core.ErrNotFound), 125},
		{notStarted(core.ErrUnavailable), 125},
		{notStarted(core.Invalid("x")), 2},
		{notStarted(usage("x")), 2},
		{notStarted(context.DeadlineExceeded), 124},
		{&exitStatus{code: 42}, 42},
		{joinCode(&exitStatus{code: 42}, core.ErrUnavailable), 42},
		{joinCode(core.ErrPluginGone, core.ErrUnavailable), 4},
	}
	for _, tt := range tests {
		if tt.err != nil {
			tt.err = fmt.Errorf("doing something: %w", tt.err)
		}
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v: got %d, want %d", tt.err, got, tt.want)
		}
	}
}

// The codes that people script against are those of the documentation.
func TestExitCodesAreDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[int]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\|\\s*`?(\\d+)`?\\s*\\|").FindAllSubmatch(data, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		documented[n] = true
	}
	want := map[int]bool{}
	for _, c := range []int{
		exitOK, exitError, exitUsage, exitNotFound, exitUnavailable, exitConflict, exitLimit, exitUnsupported, exitPermission,
		exitTimeout, exitNotStarted,
	} {
		want[c] = true
	}
	if diff := cmp.Diff(want, documented); diff != "" {
		t.Errorf("docs/cli.md (-code +documented):\n%s", diff)
	}
}

// Wrong usage is told before anybody is asked, with exit code 2.
func TestUsageErrors(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "sbgw.toml")
	if err := os.WriteFile(conf, []byte("[gateway]\nlisten = \"unix:///nonexistent/s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		want int
	}{
		{[]string{"frobnicate"}, 2},
		{[]string{"workspace", "frobnicate"}, 2},
		{[]string{"ls", "--frob"}, 2},
		{[]string{"ls", "extra"}, 2},
		{[]string{"info"}, 2},
		{[]string{"exec", "box"}, 2},
		{[]string{"run"}, 2},
		{[]string{"create", "a", "b"}, 2},
		{[]string{"path"}, 2},
		{[]string{"rm"}, 2},
		{[]string{"serve", "--config", filepath.Join(t.TempDir(), "absent.toml")}, 2},
		{[]string{"serve", "--config", conf, "--log-level", "loud"}, 2},
		{[]string{"ls", "--addr", "tcp://x:1"}, 2},
		{[]string{"ls", "--config", conf}, 4},
		{[]string{"exec", "--config", conf, "box", "true"}, 125},
		{[]string{"version"}, 0},
		{[]string{"--help"}, 0},
	}
	for _, tt := range tests {
		var out bytes.Buffer
		root := newRoot(&app{stdin: os.Stdin, stdout: &out, stderr: &out})
		root.SetArgs(tt.args)
		err := root.ExecuteContext(t.Context())
		if got := exitCode(err); got != tt.want {
			t.Errorf("%q: got exit code %d (%v), want %d", tt.args, got, err, tt.want)
		}
	}
}
