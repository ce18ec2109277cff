package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"
)

// record is what the manager knows of a box. The exported fields don't change
// after creation and are what the store keeps; losing them costs nothing, they
// are in the box's labels too.
type record struct {
	ID          BoxID             `json:"id"`
	Owner       Owner             `json:"owner,omitempty"`
	Pool        PoolName          `json:"pool"`
	Policy      LifecyclePolicy   `json:"policy"`
	Workspace   WorkspaceID       `json:"workspace,omitempty"` // empty: a volume of its own
	Labels      map[string]string `json:"labels,omitempty"`
	Image       string            `json:"image"`
	CreatedAt   time.Time         `json:"created_at"`
	IdleTimeout time.Duration     `json:"idle_timeout,omitempty"`
	StopTimeout time.Duration     `json:"stop_timeout,omitempty"`
	VNC         bool              `json:"vnc,omitempty"`

	creating bool // under Manager.mu: reserved, not there yet
	seen     bool // under Manager.mu: told by the pool's present feed

	mu         sync.Mutex
	state      BoxState
	lastActive time.Time
	running    int // execs of this manager in flight
}

// volume is the box's volume: its workspace's, or its own.
func (r *record) volume() WorkspaceID {
	if r.Workspace != "" {
		return r.Workspace
	}
	return WorkspaceID(r.ID)
}

// ref names the box in its present incarnation.
func (r *record) ref() BoxRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	return BoxRef{ID: r.ID, Incarnation: r.state.Incarnation}
}

func (r *record) setState(s BoxState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = s
}

// touch notes that the box is in use; delta counts an exec that begins or ends.
func (r *record) touch(delta int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastActive = time.Now()
	r.running += delta
}

func (r *record) matches(o ListOptions) bool {
	if o.Owner != "" && r.Owner != Owner(o.Owner) || o.Pool != "" && r.Pool != PoolName(o.Pool) {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := r.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// managedLabels are what a box carries so that any gateway can tell what it is.
func (r *record) managedLabels(gateway string) map[string]string {
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	maps.Copy(labels, map[string]string{
		LabelGateway: gateway, LabelBox: string(r.ID), LabelOwner: string(r.Owner), LabelPool: string(r.Pool),
		LabelPolicy: string(r.Policy), LabelWorkspace: string(r.Workspace),
		LabelCreated: r.CreatedAt.Format(time.RFC3339Nano),
		LabelIdle:    r.IdleTimeout.String(), LabelStop: r.StopTimeout.String(),
	})
	return labels
}

// recordOf rebuilds a record from the labels of a box. What a label does not say
// is the pool's default.
func recordOf(s BoxState, p *pool) *record {
	l := s.Labels
	r := &record{
		ID: s.ID, Owner: Owner(l[LabelOwner]), Pool: p.name(), Policy: LifecyclePolicy(l[LabelPolicy]),
		Workspace: WorkspaceID(l[LabelWorkspace]), Image: s.Image, CreatedAt: s.CreatedAt,
		IdleTimeout: p.conf.IdleTimeout, StopTimeout: p.conf.StopTimeout, lastActive: time.Now(),
	}
	if t, err := time.Parse(time.RFC3339Nano, l[LabelCreated]); err == nil {
		r.CreatedAt = t
	}
	if d, err := time.ParseDuration(l[LabelIdle]); err == nil {
		r.IdleTimeout = d
	}
	if d, err := time.ParseDuration(l[LabelStop]); err == nil && d > 0 {
		r.StopTimeout = d
	}
	if r.Policy == "" {
		r.Policy = Session
	}
	r.Labels = userLabels(l)
	return r
}

const bucketBoxes = "boxes"

func (m *Manager) saveRecord(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode box %s: %w", r.ID, err)
	}
	return m.store.Put(bucketBoxes, string(r.ID), data)
}

// loadRecords brings the boxes that were known, in unknown status until their
// pool tells.
func (m *Manager) loadRecords() error {
	all, err := m.store.All(bucketBoxes)
	if err != nil {
		return fmt.Errorf("load boxes: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, data := range all {
		r := &record{lastActive: time.Now()}
		if err := json.Unmarshal(data, r); err != nil {
			m.log.Warn("record of a box is not readable, waiting for its pool", "box", id, "err", err)
			continue
		}
		r.state = BoxState{ID: r.ID, Status: StatusUnknown, Image: r.Image}
		m.boxes[r.ID] = r
	}
	return nil
}

// forget drops a box that is gone.
func (m *Manager) forget(r *record) {
	m.mu.Lock()
	if m.boxes[r.ID] == r {
		delete(m.boxes, r.ID)
	}
	m.mu.Unlock()
	if err := m.store.Delete(bucketBoxes, string(r.ID)); err != nil {
		m.log.Warn("delete record of a removed box", "box", r.ID, "err", err)
	}
}
