package logging

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What a plugin logs must have time, level and message as strings, or go-plugin's
// side can't read it.
func TestForPlugin(t *testing.T) {
	var b bytes.Buffer
	ForPlugin(&b, slog.LevelDebug).With(Pool, "p").Warn("it happened", Duration, 1500*time.Millisecond, PID, 7)
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", got["@timestamp"].(string)); err != nil {
		t.Error(err)
	}
	delete(got, "@timestamp")
	want := map[string]any{"@level": "warn", "@message": "it happened", Pool: "p", Duration: "1.5s", PID: 7.0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}
