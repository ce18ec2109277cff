package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// systemFile is read where neither a flag, SBGW_CONFIG nor the present directory
// names a file.
const systemFile = "/etc/sbgw/sbgw.toml"

// Find returns the file to read: the one named by the flag, by SBGW_CONFIG,
// ./sbgw.toml or /etc/sbgw/sbgw.toml; empty if there is none of them.
func Find(flag string) string {
	if flag != "" {
		return flag
	}
	if p := os.Getenv("SBGW_CONFIG"); p != "" {
		return p
	}
	for _, p := range []string{"sbgw.toml", systemFile} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}

// Load returns the defaults overridden by the file (none if the path is empty),
// the environment and then the functions, which set what flags say. The error
// has everything that is wrong with the result.
func Load(path string, flags ...func(*Config)) (Config, error) {
	c := Default()
	var errs []error
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		if err := c.decode(path, data); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.environment(os.Getenv))
	for _, set := range flags {
		set(&c)
	}
	errs = append(errs, c.Validate())
	return c, errors.Join(errs...)
}

// file is the document's shape. Pools are read through poolTable, so that a key
// that is left out is told from one that is zero.
type file struct {
	Gateway Gateway     `toml:"gateway"`
	Mount   Mount       `toml:"mount"`
	Plugins Plugins     `toml:"plugins"`
	Pool    []poolTable `toml:"pool"`
}

type poolTable struct {
	Name        string         `toml:"name"`
	Addr        string         `toml:"addr"`
	Plugin      string         `toml:"plugin"`
	MaxTotal    *int           `toml:"max_total"`
	MaxPerUser  *int           `toml:"max_per_user"`
	IdleTimeout *duration      `toml:"idle_timeout"`
	MaxLifetime *duration      `toml:"max_lifetime"`
	StopTimeout *duration      `toml:"stop_timeout"`
	Hide        []string       `toml:"hide"`
	Options     map[string]any `toml:"options"`
}

// duration is written as in "1h30m".
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"30s\" or \"1h30m\"", text)
	}
	*d = duration(v)
	return nil
}

// decode reads a document over c. Unknown keys don't stop it, so that everything
// wrong is told at once.
func (c *Config) decode(name string, data []byte) error {
	f := file{Gateway: c.Gateway, Mount: c.Mount, Plugins: c.Plugins}
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&f)
	c.Gateway, c.Mount, c.Plugins = f.Gateway, f.Mount, f.Plugins
	if len(f.Pool) > 0 {
		c.Pools = nil
	}
	for _, t := range f.Pool {
		c.Pools = append(c.Pools, t.pool())
	}
	return describe(name, err)
}

func (t poolTable) pool() Pool {
	p := defaultPool(t.Name, t.Addr)
	p.Plugin, p.Hide, p.Options = t.Plugin, t.Hide, t.Options
	set(&p.MaxTotal, t.MaxTotal)
	set(&p.MaxPerUser, t.MaxPerUser)
	set(&p.IdleTimeout, (*time.Duration)(t.IdleTimeout))
	set(&p.MaxLifetime, (*time.Duration)(t.MaxLifetime))
	set(&p.StopTimeout, (*time.Duration)(t.StopTimeout))
	return p
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// describe gives every error of a decoding its file, line and column.
func describe(name string, err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	if missing, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for _, e := range missing.Errors {
			line, column := e.Position()
			errs = append(errs, fmt.Errorf("%s:%d:%d: unknown key %q", name, line, column, keyText(e.Key())))
		}
		return errors.Join(errs...)
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := e.Position()
		return fmt.Errorf("%s:%d:%d: %w", name, line, column, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

func keyText(key toml.Key) string {
	var text strings.Builder
	for i, part := range key {
		if i > 0 {
			text.WriteString(".")
		}
		text.WriteString(part)
	}
	return text.String()
}

// environment sets what SBGW_* variables say.
func (c *Config) environment(getenv func(string) string) error {
	texts := []struct {
		name string
		to   *string
	}{
		{"SBGW_LISTEN", &c.Gateway.Listen},
		{"SBGW_STATE_DIR", &c.Gateway.StateDir},
		{"SBGW_MOUNT_ROOT", &c.Mount.Root},
		{"SBGW_MOUNT_OWNER", &c.Mount.Owner},
		{"SBGW_MOUNT_SYMLINKS", &c.Mount.Symlinks},
		{"SBGW_PLUGINS_DIR", &c.Plugins.Dir},
	}
	for _, t := range texts {
		if v := getenv(t.name); v != "" {
			*t.to = v
		}
	}
	if v := getenv("SBGW_MOUNT_ALLOW_OTHER"); v != "" {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("SBGW_MOUNT_ALLOW_OTHER: %q is neither true nor false", v)
		}
		c.Mount.AllowOther = b
	}
	return nil
}
