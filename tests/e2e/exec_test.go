package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/tests/rig"
)

func testExec(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	before := boxes(t, r)
	tests := []struct {
		name   string
		stdin  string
		args   []string
		stdout string
		stderr string // part
		code   int
	}{
		{name: "stdout", args: []string{"exec", box.ID, "echo", "hi"}, stdout: "hi\n"},
		{name: "streams apart", args: []string{"exec", box.ID, "sh", "-c", "echo out; echo err >&2"}, stdout: "out\n", stderr: "err"},
		{name: "exit code", args: []string{"exec", box.ID, "sh", "-c", "exit 7"}, code: 7},
		{name: "signal", args: []string{"exec", box.ID, "sh", "-c", "kill -TERM $$"}, code: 143},
		{name: "not found", args: []string{"exec", box.ID, "no-such-command"}, code: 127, stderr: "no-such-command"},
		{name: "not executable", args: []string{"exec", box.ID, "/etc/passwd"}, code: 126},
		{name: "starts in the working directory", args: []string{"exec", box.ID, "pwd"}, stdout: "/workspace\n"},
		{name: "working directory", args: []string{"exec", "-w", "/usr", box.ID, "pwd"}, stdout: "/usr\n"},
		{name: "environment", args: []string{"exec", "-e", "A=b c", box.ID, "sh", "-c", "echo $A"}, stdout: "b c\n"},
		{name: "user", args: []string{"exec", "-u", "1000", box.ID, "id", "-u"}, stdout: "1000\n"},
		{name: "no stdin", stdin: "unread", args: []string{"exec", box.ID, "cat"}},
		{name: "stdin", stdin: "in\nput", args: []string{"exec", "-i", box.ID, "cat"}, stdout: "in\nput"},
		{name: "much stdin", stdin: strings.Repeat("x", 1<<20), args: []string{"exec", "-i", box.ID, "wc", "-c"}, stdout: "1048576\n"},
		{name: "flags after the command are its own", args: []string{"exec", box.ID, "echo", "-i", "-w"}, stdout: "-i -w\n"},
		{name: "run", args: []string{"run", "sh", "-c", "pwd; exit 3"}, stdout: "/workspace\n", code: 3},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			res := r.CLIInput(t, tc.stdin, tc.args...)
			if res.Code != tc.code {
				t.Errorf("exit code %d, want %d; stderr: %s", res.Code, tc.code, res.Stderr)
			}
			if res.Stdout != tc.stdout {
				t.Errorf("stdout %q, want %q", shorten(res.Stdout), shorten(tc.stdout))
			}
			if !strings.Contains(res.Stderr, tc.stderr) {
				t.Errorf("stderr %q, want %q in it", res.Stderr, tc.stderr)
			}
		})
	}
	if after := boxes(t, r); after != before {
		t.Errorf("boxes after run: %s, want those of before: %s", after, before)
	}
}

func shorten(s string) string { return s[:min(len(s), 200)] }

// testExecInterrupted: Ctrl-C at the command line ends the command in the box.
func testExecInterrupted(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	cmd := r.Command(t.Context(), "exec", box.ID, "sh", "-c", "touch started; sleep 600 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 20*time.Second, func() error { return stat(box.Path + "/started") })
	interrupt(t, cmd)
	if code := cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("an interrupted exec exits with 0")
	}
	rig.Eventually(t, 10*time.Second, func() error {
		return expect(r.CLI(t, "exec", box.ID, "sh", "-c", "grep -l sleep /proc/[0-9]*/comm; true").Stdout, "")
	})
}

// testBadInput: what is wrong is said clearly, by the documented exit code, and
// nothing is lost.
func testBadInput(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	before, spacesBefore := boxes(t, r), workspaces(t, r)
	long := strings.Repeat("n", 300)
	tests := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"unknown command", []string{"frobnicate"}, 2, "frobnicate"},
		{"unknown flag", []string{"ls", "--frob"}, 2, "frob"},
		{"no box", []string{"info"}, 2, ""},
		{"unknown box", []string{"info", "no-such-box"}, 3, "no-such-box"},
		{"stop an unknown box", []string{"stop", "no-such-box"}, 3, "no-such-box"},
		{"start an unknown box", []string{"start", "no-such-box"}, 3, "no-such-box"},
		{"remove an unknown box", []string{"rm", "no-such-box"}, 3, "no-such-box"},
		{"path of nothing", []string{"path", "no-such-thing"}, 3, "no-such-thing"},
		{"exec in an unknown box", []string{"exec", "no-such-box", "true"}, 125, "no-such-box"},
		{"unknown workspace", []string{"create", "--workspace", "no-such-ws"}, 3, "no-such-ws"},
		{"remove an unknown workspace", []string{"workspace", "rm", "no-such-ws"}, 3, "no-such-ws"},
		{"workspace in use", []string{"workspace", "rm", box.Workspace}, 5, box.ID},
		{"unknown pool", []string{"create", "--pool", "no-such-pool"}, 3, "no-such-pool"},
		{"unknown image", []string{"create", "--image", "debian:12"}, 7, "debian:12"},
		{"slash in a box's name", []string{"create", "a/b"}, 2, "a/b"},
		{"long name", []string{"create", long}, 2, ""},
		{"dots as a name", []string{"create", ".."}, 2, ""},
		{"slash in a workspace's name", []string{"workspace", "create", "a/b"}, 2, "a/b"},
		{"long workspace name", []string{"workspace", "create", long}, 2, ""},
		{"no command", []string{"exec", box.ID}, 2, ""},
		{"empty command", []string{"exec", box.ID, ""}, 2, "command"},
		{"env without key", []string{"exec", "-e", "=x", box.ID, "true"}, 2, "=x"},
		{"env without value", []string{"exec", "-e", "x", box.ID, "true"}, 2, "x"},
		{"bad output format", []string{"ls", "-o", "yaml"}, 2, "yaml"},
		{"taken name", []string{"create", box.ID}, 5, box.ID},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			res := r.CLI(t, tc.args...)
			if res.Code != tc.code {
				t.Errorf("%q: exit code %d, want %d; stderr: %s", tc.args, res.Code, tc.code, res.Stderr)
			}
			if !strings.Contains(res.Stderr, tc.says) || strings.TrimSpace(res.Stderr) == "" {
				t.Errorf("%q: stderr %q, want %q in it", tc.args, res.Stderr, tc.says)
			}
			if res.Stdout != "" {
				t.Errorf("%q: stdout %q, want none", tc.args, res.Stdout)
			}
		})
	}
	if after := boxes(t, r); after != before {
		t.Errorf("boxes after all that: %s, want %s", after, before)
	}
	if spaces := workspaces(t, r); spaces != spacesBefore {
		t.Errorf("workspaces after all that: %s, want %s", spaces, spacesBefore)
	}
}

// boxes tells every box and what it does.
func boxes(t *testing.T, r *rig.Rig) string {
	t.Helper()
	var all []string
	for _, b := range decode[[]view](t, r.Must(t, "ls", "-o", "json")) {
		all = append(all, b.ID+" "+b.Status)
	}
	return strings.Join(all, ", ")
}

func workspaces(t *testing.T, r *rig.Rig) string {
	t.Helper()
	var all []string
	for _, w := range decode[[]view](t, r.Must(t, "workspace", "ls", "-o", "json")) {
		all = append(all, w.ID)
	}
	return strings.Join(all, ", ")
}

func testStoppedBox(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	r.Must(t, "exec", box.ID, "sh", "-c", "echo kept > f; echo kept > /usr/local/f")
	r.Must(t, "stop", box.ID)
	if got := decode[view](t, r.Must(t, "info", "-o", "json", box.ID)); got.Status != "stopped" {
		t.Errorf("status %q after stop", got.Status)
	}
	if res := r.CLI(t, "exec", box.ID, "true"); res.Code != 125 || !strings.Contains(res.Stderr, "not running") {
		t.Errorf("exec in a stopped box: exit code %d, want 125; stderr: %s", res.Code, res.Stderr)
	}
	r.Must(t, "stop", box.ID)
	r.Must(t, "start", box.ID)
	if got := r.Must(t, "exec", box.ID, "cat", "f", "/usr/local/f"); got != "kept\nkept" {
		t.Errorf("after stop and start the files have %q", got)
	}
	r.Must(t, "rm", box.ID)
	if res := r.CLI(t, "info", box.ID); res.Code != 3 {
		t.Errorf("info of a removed box: exit code %d, want 3", res.Code)
	}
}

// testRemovedWorkspace: a removed workspace's directory goes at once.
func testRemovedWorkspace(t *testing.T, r *rig.Rig) {
	ws := decode[view](t, r.Must(t, "workspace", "create", "-o", "json", "mine"))
	box := create(t, r, "--workspace", ws.ID)
	if box.Workspace != ws.ID {
		t.Fatalf("the box's workspace is %q, want %q", box.Workspace, ws.ID)
	}
	write(t, box.Path+"/f", "x")
	r.Must(t, "rm", box.ID)
	if got := r.Must(t, "path", ws.ID); read(t, got+"/f") != "x" {
		t.Error("the workspace lost its file with the box")
	}
	r.Must(t, "workspace", "rm", ws.ID)
	rig.Eventually(t, time.Second, func() error { return absent(box.Path) })
	if res := r.CLI(t, "path", ws.ID); res.Code != 3 {
		t.Errorf("path of a removed workspace: exit code %d, want 3", res.Code)
	}
}
