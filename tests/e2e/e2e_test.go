// Package e2e tests the whole system from outside: real processes, real
// containers and mounts, driven by the command line as a user would.
package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yaoapp/sbgw/tests/rig"
)

// TestMain is also the program that a box looks for sockets with.
func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		probe(os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// view is what -o json has of boxes and workspaces, by its documented keys.
type view struct {
	ID, Pool, Status, Workspace, Path string
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in the output:\n%s", err, text)
	}
	return v
}

func create(t *testing.T, r *rig.Rig, args ...string) view {
	t.Helper()
	return decode[view](t, r.Must(t, append([]string{"create", "-o", "json"}, args...)...))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestGateway is what needs a gateway and leaves it as it was: one for all.
func TestGateway(t *testing.T) {
	r := rig.New(t)
	tests := []struct {
		name string
		run  func(*testing.T, *rig.Rig)
	}{
		{"files", testFiles},
		{"owners", testOwners},
		{"symlinks contained", testSymlinksContained},
		{"exec", testExec},
		{"exec interrupted", testExecInterrupted},
		{"bad input", testBadInput},
		{"stopped box", testStoppedBox},
		{"removed workspace", testRemovedWorkspace},
		{"readme", testReadme},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, r) })
	}
}

// TestUpTourDown is the first hour of a user: up with its tour, again, down, up.
func TestUpTourDown(t *testing.T) {
	r := rig.Prepare(t)
	tour := r.CLI(t, "up", "--tour")
	if tour.Code != 0 {
		t.Fatalf("up --tour: exit code %d, want 0\n%s%s", tour.Code, tour.Stdout, tour.Stderr)
	}
	said := tour.Stdout + tour.Stderr
	if !strings.Contains(said, r.Root+"/") {
		t.Errorf("the tour shows no path under %s:\n%s", r.Root, said)
	}
	if !regexp.MustCompile(`\d(\.\d+)? ?m?s\b`).MatchString(said) {
		t.Errorf("the tour shows no times:\n%s", said)
	}
	before := decode[[]view](t, r.Must(t, "ls", "-o", "json"))
	if again := r.CLI(t, "up"); again.Code != 0 {
		t.Errorf("up again: exit code %d, want 0\n%s", again.Code, again.Stderr)
	}
	if again := r.CLI(t, "up", "--tour"); again.Code != 0 {
		t.Errorf("up --tour again: exit code %d, want 0\n%s%s", again.Code, again.Stdout, again.Stderr)
	}

	box := create(t, r)
	write(t, filepath.Join(box.Path, "kept"), "still here\n")
	down := r.Down(t)
	if !strings.Contains(down.Stdout+down.Stderr, "kept") {
		t.Errorf("down does not say that boxes and files are kept:\n%s%s", down.Stdout, down.Stderr)
	}
	if again := r.CLI(t, "down"); again.Code != 0 {
		t.Errorf("down again: exit code %d, want 0\n%s", again.Code, again.Stderr)
	}

	r.Must(t, "up")
	after := decode[[]view](t, r.Must(t, "ls", "-o", "json"))
	if len(after) < len(before)+1 {
		t.Errorf("%d boxes after down and up, want at least %d", len(after), len(before)+1)
	}
	for _, b := range after {
		if b.Status != "stopped" {
			t.Errorf("box %s is %s after down and up, want stopped", b.ID, b.Status)
		}
	}
	r.Must(t, "start", box.ID)
	if got := r.Must(t, "exec", box.ID, "cat", "kept"); got != "still here" {
		t.Errorf("after down, up and start the box has %q", got)
	}
	if got := read(t, filepath.Join(box.Path, "kept")); got != "still here\n" {
		t.Errorf("after down, up and start the mount has %q", got)
	}
}

// testFiles: a program written by ordinary path runs in the box, and what it
// wrote is there by ordinary path, at once.
func testFiles(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	if want := filepath.Join(r.Root, box.Workspace); box.Path != want {
		t.Fatalf("path %q, want %q", box.Path, want)
	}
	for _, id := range []string{box.ID, box.Workspace} {
		if got := r.Must(t, "path", id); got != box.Path {
			t.Errorf("path %s: %q, want %q", id, got, box.Path)
		}
	}
	write(t, filepath.Join(box.Path, "prog.sh"), "#!/bin/sh\nread x < in\necho \"got $x\" > out\nmkdir -p d/e && mv in d/e/\n")
	write(t, filepath.Join(box.Path, "in"), "hello\n")
	if err := os.Chmod(filepath.Join(box.Path, "prog.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.Must(t, "exec", box.ID, "./prog.sh")
	if got := read(t, filepath.Join(box.Path, "out")); got != "got hello\n" {
		t.Errorf("out has %q", got)
	}
	if got := read(t, filepath.Join(box.Path, "d/e/in")); got != "hello\n" {
		t.Errorf("d/e/in has %q", got)
	}
	if _, err := os.Stat(filepath.Join(box.Path, "in")); !os.IsNotExist(err) {
		t.Errorf("in is still there after the box moved it away: %v", err)
	}
}

// testOwners: with the default owner = "squash" the gateway's user and a box user
// that is not root both write, each other's files too.
func testOwners(t *testing.T, r *rig.Rig) {
	box := create(t, r, "--user", "1000")
	write(t, filepath.Join(box.Path, "from-outside"), "1\n")
	r.Must(t, "exec", box.ID, "sh", "-c", "id -u > who && echo 2 >> from-outside && mkdir sub && echo in > sub/f")
	if got := read(t, filepath.Join(box.Path, "from-outside")); got != "1\n2\n" {
		t.Errorf("from-outside has %q", got)
	}
	if got := read(t, filepath.Join(box.Path, "who")); got != "1000\n" {
		t.Errorf("the box's user is %q, want 1000", got)
	}
	write(t, filepath.Join(box.Path, "sub/f"), "out\n")
	write(t, filepath.Join(box.Path, "sub/new"), "new\n")
	if got := r.Must(t, "exec", box.ID, "sh", "-c", "cat sub/f && echo more >> sub/new && rm sub/f && cat sub/new"); got != "out\nnew\nmore" {
		t.Errorf("the box sees %q", got)
	}
}

// testSymlinksContained: with the default symlinks = "contain" a link that a box
// made does not lead the gateway's user out of the workspace.
func testSymlinksContained(t *testing.T, r *rig.Rig) {
	box := create(t, r)
	r.Must(t, "exec", box.ID, "sh", "-c", "echo x > f && ln -s f in && ln -s /etc/passwd out && ln -s ../../../../../../etc/passwd up")
	if got := read(t, filepath.Join(box.Path, "in")); got != "x\n" {
		t.Errorf("a link inside of the workspace reads %q", got)
	}
	for _, l := range []string{"out", "up"} {
		if b, err := os.ReadFile(filepath.Join(box.Path, l)); err == nil {
			t.Errorf("link %s led out of the workspace, to %d bytes", l, len(b))
		}
	}
}

// testReadme runs the lines that the README shows.
func testReadme(t *testing.T, r *rig.Rig) {
	_, rest, _ := strings.Cut(read(t, "../../README.md"), "## Ten lines")
	_, rest, _ = strings.Cut(rest, "```sh\n")
	script, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the README has no ten lines")
	}
	cmd, err := r.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v, after:\n%s", err, out)
	}
	if !strings.HasPrefix(string(out), "3\nstdin too\n[") {
		t.Errorf("the README's lines print %q", out)
	}
}
