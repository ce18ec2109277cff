package arch

import (
	"slices"
	"strings"
	"testing"
)

// A rule forbids packages in some folders to import others. Folders and imports
// are prefixes; an import without a dot in its first element is ours.
type rule struct {
	why     string
	in      []string // folders it holds for; none: all
	except  []string // folders in there that may
	imports []string // what they must not import
	allow   []string // but may
	tests   bool     // holds for test files too
}

var rules = []rule{
	{
		why: "core reaches everything else through the interfaces in core.Config",
		in:  []string{"core"}, except: []string{"core/coretest"},
		imports: []string{"client", "cmd", "fusefs", "gateway", "plugins", "proto", "tai", "volume", "internal/boxpb", "internal/boxrpc", "internal/config", "internal/grpcerr", "internal/procstream", "internal/state"},
	},
	{
		why: "workspace has the nouns that core aliases, and knows nobody",
		in:  []string{"workspace"}, imports: []string{""}, allow: []string{"workspace", "internal/atomicfile", "internal/logging"},
	},
	{
		why:    "the volume client is for the parts that move bytes",
		except: []string{"volume", "fusefs", "tai", "gateway", "plugins", "cmd", "tests", "core/coretest"}, imports: []string{"volume"},
	},
	{
		why:    "only plugins/wire and plugins/launch know how plugin processes talk",
		except: []string{"plugins/wire", "plugins/launch"}, imports: []string{"github.com/hashicorp/go-plugin"}, tests: true,
	},
	{
		why: "a backend is a Go value that plugins/wire turns into a process",
		in:  []string{"plugins"}, except: []string{"plugins/wire", "plugins/launch"}, imports: []string{"plugins/wire", "plugins/launch"},
	},
	{
		why: "a backend never imports another backend",
		in:  []string{"plugins/docker"}, imports: []string{"plugins/k8s", "plugins/tai"},
	},
	{
		why: "a backend never imports another backend",
		in:  []string{"plugins/k8s"}, imports: []string{"plugins/docker", "plugins/tai"},
	},
	{
		why:    "only cmd and the gateway know everybody",
		except: []string{"gateway", "cmd", "tests"}, imports: []string{"gateway"},
	},
	{
		why: "nobody imports a command", imports: []string{"cmd"}, except: []string{"cmd"},
	},
	{
		why:    "go-fuse stays behind fusefs",
		except: []string{"fusefs", "tests/posix"}, imports: []string{"github.com/hanwen/go-fuse"}, tests: true,
	},
	{
		why:    "the command line is parsed in cmd",
		except: []string{"cmd"}, imports: []string{"github.com/spf13/cobra", "github.com/spf13/pflag"}, tests: true,
	},
	{
		why:    "log/slog is the only logger; go-fuse takes none but a log.Logger",
		except: []string{"fusefs"}, imports: []string{"log"}, tests: true,
	},
	{
		why: "tests use the standard library and go-cmp", imports: []string{"github.com/stretchr/testify", "github.com/onsi/", "go.uber.org/mock"}, tests: true,
	},
}

func TestImportRules(t *testing.T) {
	for _, p := range packages(t) {
		for _, r := range rules {
			if !r.holdsFor(p.folder()) {
				continue
			}
			imports := slices.Clone(p.Imports)
			if r.tests {
				imports = slices.Concat(imports, p.TestImports, p.XTestImports)
			}
			for _, i := range imports {
				if r.forbids(i) {
					t.Errorf("%s imports %s: %s", p.folder(), i, r.why)
				}
			}
		}
	}
}

// TestCoreImportsNoModule: core has the standard library and us, so that a host
// application's own choice of modules is never in its way.
func TestCoreImportsNoModule(t *testing.T) {
	for _, p := range packages(t) {
		if f := p.folder(); f != "core" && f != "workspace" {
			continue
		}
		for _, d := range p.Deps {
			if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") && !strings.HasPrefix(d, module+"/") {
				t.Errorf("%s depends on %s: it may have the standard library only", p.folder(), d)
			}
		}
	}
}

// TestGatewayLinksNoSDK: the daemon carries no backend's SDK and no backend.
func TestGatewayLinksNoSDK(t *testing.T) {
	sdk := []string{"github.com/docker/docker", "github.com/moby/moby", "k8s.io/", module + "/plugins/docker", module + "/plugins/k8s", module + "/plugins/tai", module + "/tai/node"}
	found := false
	for _, p := range packages(t) {
		if p.folder() != "cmd/sbgw" {
			continue
		}
		found = true
		for _, d := range p.Deps {
			for _, s := range sdk {
				if under(d, s) {
					t.Errorf("cmd/sbgw links %s; that belongs in a plugin", d)
				}
			}
		}
	}
	if !found {
		t.Error("cmd/sbgw is not there")
	}
}

// TestRuleForbids shows that the rules would see something.
func TestRuleForbids(t *testing.T) {
	tests := []struct {
		folder, imports string
		want            bool
	}{
		{"core", module + "/volume", true},
		{"core", module + "/workspace", false},
		{"core/coretest", module + "/volume", false},
		{"workspace", module + "/core", true},
		{"fusefs", module + "/volume", false},
		{"client", module + "/volume", true},
		{"plugins/tai", module + "/plugins/wire", true},
		{"plugins/tai", "github.com/hashicorp/go-plugin", true},
		{"plugins/wire", "github.com/hashicorp/go-plugin", false},
		{"client", module + "/gateway", true},
		{"client", module + "/proto/sbgw/gateway/v1", false},
		{"volume", "log", true},
		{"volume", "log/slog", false},
	}
	for _, tc := range tests {
		got := slices.ContainsFunc(rules, func(r rule) bool { return r.holdsFor(tc.folder) && r.forbids(tc.imports) })
		if got != tc.want {
			t.Errorf("%s importing %s: forbidden %v, want %v", tc.folder, tc.imports, got, tc.want)
		}
	}
}

func (r rule) holdsFor(folder string) bool {
	in := len(r.in) == 0 || slices.ContainsFunc(r.in, func(f string) bool { return under(folder, f) })
	return in && !slices.ContainsFunc(r.except, func(f string) bool { return under(folder, f) })
}

func (r rule) forbids(path string) bool {
	ours, isOurs := strings.CutPrefix(path, module+"/")
	matches := func(pattern string) bool {
		if first, _, _ := strings.Cut(pattern, "/"); strings.Contains(first, ".") {
			return under(path, pattern)
		}
		if pattern == "log" {
			return path == "log"
		}
		return isOurs && (pattern == "" || under(ours, pattern))
	}
	return slices.ContainsFunc(r.imports, matches) && !slices.ContainsFunc(r.allow, matches)
}

// under reports whether path is folder or in it.
func under(path, folder string) bool {
	folder = strings.TrimSuffix(folder, "/")
	return path == folder || strings.HasPrefix(path, folder+"/")
}
