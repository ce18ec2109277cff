package inbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLookPath(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		first + "/both": 0o644, second + "/both": 0o755, second + "/tool": 0o755, first + "/plain": 0o644,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(first, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, command, want string
		code                int
	}{
		{"in the second directory", "tool", second + "/tool", 0},
		{"the first is not executable", "both", second + "/both", 0},
		{"none is executable", "plain", "", codeCannotRun},
		{"none", "nothing", "", codeNotFound},
		{"a directory", "dir", "", codeCannotRun},
		{"a path", first + "/plain", "", codeCannotRun},
		{"a path to nothing", first + "/plain/x", "", codeNotFound},
		{"an absolute path", second + "/tool", second + "/tool", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := lookPath(test.command, first+":"+second+":/nowhere")
			code := 0
			if e := (*Error)(nil); errors.As(err, &e) {
				code = e.Code
			}
			if code != test.code || code == 0 && got != test.want {
				t.Errorf("%s: got %q, %v, want %q and code %d", test.command, got, err, test.want, test.code)
			}
		})
	}
}

func TestExecFails(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, dir string
		argv      []string
		code      int
	}{
		{"no command", ".", nil, codeCannotRun},
		{"no directory", "/nowhere", []string{"true"}, codeCannotRun},
		{"no interpreter", ".", []string{script}, codeNotFound},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Exec(test.dir, test.argv)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != test.code {
				t.Errorf("got %v, want code %d", err, test.code)
			}
		})
	}
}
