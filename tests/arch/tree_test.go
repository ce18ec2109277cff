package arch

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sources calls f with every Go file that people write.
func sources(t *testing.T, f func(path, text string)) {
	t.Helper()
	files(t, func(path string) {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".pb.go") {
			f(path, read(t, path))
		}
	})
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if strings.HasPrefix(p.folder(), "proto/") || len(p.GoFiles) == 0 {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.folder())
		}
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "misc"}, p.Name) {
			t.Errorf("%s: a package is named for what it provides, not %q", p.folder(), p.Name)
		}
	}
}

// TestExportedComments: every exported function, type and method of a package
// that others import has a comment that begins with its name.
func TestExportedComments(t *testing.T) {
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		if file.Name.Name == "main" {
			return
		}
		for _, d := range file.Decls {
			for name, doc := range exported(d) {
				if doc == "" {
					t.Errorf("%s: %s has no comment", path, name)
				}
			}
		}
	})
}

// exported returns the comment of each exported function, method of an exported
// type, and type in d.
func exported(d ast.Decl) map[string]string {
	docs := map[string]string{}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv.List[0].Type)) && !implementsStandard(d) {
			docs[d.Name.Name] = d.Doc.Text()
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
				docs[ts.Name.Name] = d.Doc.Text() + ts.Doc.Text() + ts.Comment.Text()
			}
		}
	}
	return docs
}

// implementsStandard: what these methods do, the standard library says.
func implementsStandard(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap", "Is", "Len", "Less", "Swap", "Read", "Write", "Close"}, d.Name.Name)
}

func exportedReceiver(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.StarExpr:
		return exportedReceiver(e.X)
	case *ast.IndexExpr:
		return exportedReceiver(e.X)
	case *ast.Ident:
		return e.IsExported()
	}
	return false
}

func TestGofmt(t *testing.T) {
	files(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		text := read(t, path)
		got, err := format.Source([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		} else if !bytes.Equal(got, []byte(text)) {
			t.Errorf("%s is not formatted: run gofmt -w %s", path, path)
		}
	})
}

func TestFileSize(t *testing.T) {
	sources(t, func(path, text string) {
		if n := strings.Count(text, "\n"); n > 800 {
			t.Errorf("%s has %d lines: split it by concern, 300 are the aim", path, n)
		}
	})
}

func TestRootHasNoGoFile(t *testing.T) {
	for _, pattern := range []string{"*.go"} {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
			t.Errorf("Go files at the root: %v", found)
		}
	}
}

// Words that a line of Go must not have, and where it may.
var forbidden = []struct {
	pattern *regexp.Regexp
	why     string
	skip    func(path string) bool
}{
	{regexp.MustCompile(`\bslog\.(Debug|Info|Warn|Error|Default|SetDefault)\(`), "loggers are passed in", nil},
	{regexp.MustCompile(`\btime\.Sleep\(`), "tests wait for something, with a deadline, and not for time", func(p string) bool { return !strings.HasSuffix(p, "_test.go") }},
	{regexp.MustCompile(`\bt\.SkipNow\(\)|\.Skip\(\)`), "a skip says its reason", nil},
	{regexp.MustCompile(`\bTODO\b`), "TODO(name): carries an issue's number, like #12", nil},
}

// pollPause is the pause of a loop that looks again, up to 20 ms; a longer sleep is
// a guess of how long something takes.
var pollPause = regexp.MustCompile(`time\.Sleep\((([1-9]|1\d|20) \* )?time\.Millisecond\)`)

var numberedTODO = regexp.MustCompile(`TODO\([a-z]+\):.*#\d+`)

func TestForbiddenWords(t *testing.T) {
	sources(t, func(path, text string) {
		if strings.HasPrefix(path, "tests/arch/") {
			return
		}
		for i, line := range strings.Split(text, "\n") {
			excused := numberedTODO.MatchString(line) || pollPause.MatchString(line)
			for _, f := range forbidden {
				if f.pattern.MatchString(line) && !excused && (f.skip == nil || !f.skip(path)) {
					t.Errorf("%s:%d: %s: %s", path, i+1, strings.TrimSpace(line), f.why)
				}
			}
		}
	})
}

// TestNoBinary: what can be built is not kept.
func TestNoBinary(t *testing.T) {
	pictures := []string{".png", ".jpg", ".svg", ".gif"}
	files(t, func(path string) {
		if slices.Contains(pictures, filepath.Ext(path)) {
			return
		}
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
			return
		}
		if len(b) > 1<<20 {
			t.Errorf("%s has %d bytes", path, len(b))
		}
		if bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 && !strings.Contains(path, "testdata/") {
			t.Errorf("%s is a binary file", path)
		}
	})
}
