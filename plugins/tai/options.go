package tai

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yaoapp/sbgw/core"
)

// options is a pool's own table.
type options struct {
	// Direct: mounts go to the local files instead of through the node.
	Direct bool
	// Hide lists further paths that no box may see.
	Hide []string
	// eventDelay holds file events back, to prove that the barrier works; for
	// tests only.
	eventDelay time.Duration
}

// parseOptions decodes the table; all that is wrong with it is told at once.
func parseOptions(data json.RawMessage) (options, error) {
	var o options
	var table map[string]json.RawMessage
	if len(data) > 0 {
		if err := json.Unmarshal(data, &table); err != nil {
			return o, core.Invalid("not a table: %v", err)
		}
	}
	var wrong []string
	decode := func(key string, into any, want string) {
		if json.Unmarshal(table[key], into) != nil {
			wrong = append(wrong, key+" is not "+want)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		switch key {
		case "direct":
			decode(key, &o.Direct, "true or false")
		case "hide":
			decode(key, &o.Hide, "a list of paths")
		case "test_event_delay":
			var text string
			decode(key, &text, "a text")
			d, err := time.ParseDuration(text)
			if err != nil || d < 0 {
				wrong = append(wrong, key+` is not a duration such as "1s"`)
			}
			o.eventDelay = d
		default:
			wrong = append(wrong, "unknown option "+key+" (known: direct, hide)")
		}
	}
	for _, h := range o.Hide {
		if !filepath.IsAbs(h) {
			wrong = append(wrong, "hide: "+h+" is not an absolute path")
		}
	}
	if wrong != nil {
		return options{}, core.Invalid("%s", strings.Join(wrong, "; "))
	}
	return o, nil
}
