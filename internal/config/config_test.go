package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func noEnv(string) string { return "" }

// write puts a document into a file and clears what the environment would set.
func write(t *testing.T, doc string) string {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "SBGW_") {
			t.Setenv(name, "")
		}
	}
	path := filepath.Join(t.TempDir(), "sbgw.toml")
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The file in the repository must say what the code does, also in the keys that
// are commented out.
func TestRepositoryFileHasTheDefaults(t *testing.T) {
	data, err := os.ReadFile("../../sbgw.toml")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^# ([a-z_]+ = )`).ReplaceAllString(string(data), "$1")
	got, want := Config{}, defaults(true, noEnv)
	if err := got.decode("sbgw.toml", []byte(all)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("sbgw.toml differs from the defaults (-want +got):\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

// A key that only the code has would be missing in the file's documentation.
func TestRepositoryFileHasEveryKey(t *testing.T) {
	data, err := os.ReadFile("../../sbgw.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"listen", "state_dir", "root", "owner", "allow_other", "symlinks", "dir", "name", "addr", "plugin",
		"max_total", "max_per_user", "idle_timeout", "max_lifetime", "stop_timeout", "hide",
	} {
		if !regexp.MustCompile(`(?m)^(# )?` + key + ` = `).Match(data) {
			t.Errorf("sbgw.toml has no key %q", key)
		}
	}
}

func TestDefaultsOfAUser(t *testing.T) {
	tests := []struct {
		name          string
		env           map[string]string
		listen, state string
	}{
		{"home only", map[string]string{"HOME": "/home/u"}, "unix:///home/u/.local/state/sbgw/sbgw.sock", "/home/u/.local/state/sbgw"},
		{"xdg", map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/run/user/7"}, "unix:///run/user/7/sbgw/sbgw.sock", "/s/sbgw"},
		{"relative xdg is ignored", map[string]string{"HOME": "/h", "XDG_STATE_HOME": "s"}, "unix:///h/.local/state/sbgw/sbgw.sock", "/h/.local/state/sbgw"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := defaults(false, func(k string) string { return tt.env[k] })
			if c.Gateway.Listen != tt.listen || c.Gateway.StateDir != tt.state || c.Mount.AllowOther {
				t.Errorf("got %q, %q, allow_other %v; want %q, %q, false", c.Gateway.Listen, c.Gateway.StateDir, c.Mount.AllowOther, tt.listen, tt.state)
			}
		})
	}
}

func TestLoadReportsEverythingWithPlaces(t *testing.T) {
	path := write(t, `[gateway]
listen = "tcp://0.0.0.0:1"
colour = "red"

[mount]
owner = "mine"
[[pool]]
name = "a/b"
addr = "local"
max_totl = 3
`)
	_, err := Load(path)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		path + `:3:1: unknown key "gateway.colour"`,
		path + `:10:1: unknown key "pool.max_totl"`,
		`gateway.listen: "tcp://0.0.0.0:1"`,
		`mount.owner: "mine" is none of squash, none`,
		`name "a/b"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error has no %q:\n%v", want, err)
		}
	}
}

func TestLoadWrongTypeHasAPlace(t *testing.T) {
	path := write(t, "[[pool]]\nname = \"a\"\naddr = \"local\"\nidle_timeout = \"soon\"\n")
	_, err := Load(path)
	if err == nil || !strings.Contains(err.Error(), path+":4:") || !strings.Contains(err.Error(), `"soon" is not a duration`) {
		t.Errorf("got %v", err)
	}
}

func TestPrecedence(t *testing.T) {
	path := write(t, "[gateway]\nstate_dir = \"/file\"\n[mount]\nroot = \"/file-mnt\"\nowner = \"none\"\n")
	t.Setenv("SBGW_STATE_DIR", "/environment")
	t.Setenv("SBGW_MOUNT_ROOT", "/environment-mnt")
	c, err := Load(path, func(c *Config) { c.Mount.Root = "/flag-mnt" })
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Mount.Root, c.Gateway.StateDir, c.Mount.Owner, c.Mount.Symlinks}
	want := []string{"/flag-mnt", "/environment", "none", "contain"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flag, environment, file, default (-want +got):\n%s", diff)
	}
}

func TestPoolLeftOutKeysAndZeros(t *testing.T) {
	path := write(t, "[[pool]]\nname = \"a\"\naddr = \"local\"\nmax_total = 0\nidle_timeout = \"0s\"\n[pool.options]\ndirect = true\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []Pool{{
		Name: "a", Addr: "local", MaxPerUser: 5, MaxLifetime: 24 * time.Hour, StopTimeout: 2 * time.Second,
		Options: map[string]any{"direct": true},
	}}
	if diff := cmp.Diff(want, c.Pools); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	long := "/" + strings.Repeat("d", 100)
	tests := []struct {
		name string
		edit func(*Config)
		want string // empty: valid
	}{
		{"defaults", func(*Config) {}, ""},
		{"long socket", func(c *Config) { c.Gateway.Listen = "unix://" + long + "/sbgw.sock" }, "may have 107"},
		{"long state dir", func(c *Config) { c.Gateway.StateDir = long }, "too long"},
		{"relative state dir", func(c *Config) { c.Gateway.StateDir = "state" }, "not absolute"},
		{"relative root", func(c *Config) { c.Mount.Root = "mnt" }, "not absolute"},
		{"root above state", func(c *Config) { c.Mount.Root = "/var/lib" }, "inside of it"},
		{"root is state", func(c *Config) { c.Mount.Root = "/var/lib/sbgw" }, "inside of it"},
		{"root in pools", func(c *Config) { c.Mount.Root = "/var/lib/sbgw/pools/x" }, "pools keep their state"},
		{"symlinks", func(c *Config) { c.Mount.Symlinks = "maybe" }, "mount.symlinks"},
		{"two pools of a name", func(c *Config) { c.Pools = append(c.Pools, c.Pools[0]) }, "two of this name"},
		{"no addr", func(c *Config) { c.Pools[0].Addr = "" }, "addr is missing"},
		{"unknown scheme", func(c *Config) { c.Pools[0].Addr = "gopher://x" }, "is none of"},
		{"foreign plugin", func(c *Config) { c.Pools[0].Addr, c.Pools[0].Plugin = "anything", "exec" }, ""},
		{"plugin is a path", func(c *Config) { c.Pools[0].Plugin = "../x" }, "not the name of a plugin"},
		{"negative limit", func(c *Config) { c.Pools[0].MaxTotal = -1 }, "at least 0"},
		{"negative time", func(c *Config) { c.Pools[0].StopTimeout = -1 }, "stop_timeout is less than 0"},
		{"relative hide", func(c *Config) { c.Pools[0].Hide = []string{"secret"} }, "not absolute"},
		{"no plugins", func(c *Config) { c.Plugins.Dir = "" }, "plugins.dir"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := defaults(true, noEnv)
			tt.edit(&c)
			err := c.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("[gateway]\nlisten = \"x\"\n[[pool]]\nidle_timeout = \"1s\"\n[pool.options]\na = [1, {b = 2}]\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c := defaults(true, noEnv)
		if err := c.decode("f", doc); err == nil {
			c.Validate()
		}
	})
}
