package arch

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// protocVersion is in every generated file, and not what makes one stale.
var protocVersion = regexp.MustCompile(`(?m)^// (- )?\s*protoc(-gen-go(-grpc)?)?\s+v.*$`)

// TestGeneratedFresh runs the generators over a copy of proto/ and compares.
func TestGeneratedFresh(t *testing.T) {
	if _, err := exec.LookPath("protoc"); err != nil {
		t.Skip("protoc is not installed; only who changes a .proto file needs it")
	}
	work := t.TempDir()
	for _, f := range []string{"go.mod", "go.sum", "tools.mod", "tools.sum"} {
		copyFile(t, filepath.Join(root, f), filepath.Join(work, f))
	}
	want := map[string]string{}
	files(t, func(path string) {
		if !strings.HasPrefix(path, "proto/") {
			return
		}
		if strings.HasSuffix(path, ".pb.go") {
			want[path] = protocVersion.ReplaceAllString(read(t, path), "")
			return
		}
		copyFile(t, filepath.Join(root, path), filepath.Join(work, path))
	})
	if out, err := exec.Command(filepath.Join(work, "proto/generate.sh")).CombinedOutput(); err != nil {
		t.Fatalf("generate.sh: %v\n%s", err, out)
	}
	err := filepath.WalkDir(filepath.Join(work, "proto"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".pb.go") {
			return err
		}
		rel, _ := filepath.Rel(work, path)
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if protocVersion.ReplaceAllString(string(got), "") != want[rel] {
			t.Errorf("%s is not what its .proto file says now: run make generate", rel)
		}
		delete(want, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range want {
		t.Errorf("%s has no .proto file", path)
	}
}

// TestCommandsDocumented: docs/cli.md has every command and every flag of sbgw,
// asked of the program itself by way of its shell completion.
func TestCommandsDocumented(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "sbgw")
	build := exec.Command("go", "build", "-o", bin, "./cmd/sbgw")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build sbgw: %v\n%s", err, out)
	}
	doc := read(t, "docs/cli.md")
	seen := 0
	var walk func(path []string)
	walk = func(path []string) {
		name := strings.Join(append([]string{"sbgw"}, path...), " ")
		if len(path) > 0 {
			seen++
			if !strings.Contains(doc, "`"+name) {
				t.Errorf("docs/cli.md does not have `%s`", name)
			}
		}
		for _, f := range completions(t, bin, slices.Concat(path, []string{"-"})) {
			if long, ok := strings.CutPrefix(f, "--"); ok && long != "help" && long != "version" && !strings.Contains(doc, "--"+strings.TrimSuffix(long, "=")) {
				t.Errorf("docs/cli.md does not have the flag --%s of `%s`", long, name)
			}
		}
		if len(path) > 1 {
			return
		}
		for _, c := range subcommands(t, bin, path) {
			if c != "help" && c != "completion" {
				walk(slices.Concat(path, []string{c}))
			}
		}
	}
	walk(nil)
	if seen < 10 {
		t.Errorf("found %d commands only; is completion off?", seen)
	}
}

// subcommands are read from the help: completion would offer arguments too.
func subcommands(t *testing.T, bin string, path []string) []string {
	t.Helper()
	out, err := exec.Command(bin, slices.Concat(path, []string{"--help"})...).Output()
	if err != nil {
		t.Fatalf("sbgw %v --help: %v", path, err)
	}
	_, rest, found := strings.Cut(string(out), "Available Commands:\n")
	if !found {
		return nil
	}
	var names []string
	for line := range strings.Lines(rest) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			break
		}
		names = append(names, fields[0])
	}
	return names
}

func completions(t *testing.T, bin string, args []string) []string {
	t.Helper()
	out, err := exec.Command(bin, slices.Concat([]string{"__complete"}, args)...).Output()
	if err != nil {
		t.Fatalf("sbgw __complete %v: %v", args, err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name != "" && !strings.HasPrefix(name, ":") {
			names = append(names, name)
		}
	}
	return names
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}
