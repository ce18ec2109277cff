package core

import (
	"maps"
	"slices"
	"sync"
)

// memoryStore is the Store of a manager that was given none.
type memoryStore struct {
	mu      sync.Mutex
	buckets map[string]map[string][]byte
}

var _ Store = (*memoryStore)(nil)

func newMemoryStore() *memoryStore {
	return &memoryStore{buckets: make(map[string]map[string][]byte)}
}

func (s *memoryStore) Put(bucket, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[bucket] == nil {
		s.buckets[bucket] = make(map[string][]byte)
	}
	s.buckets[bucket][key] = slices.Clone(value)
	return nil
}

func (s *memoryStore) Get(bucket, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.buckets[bucket][key]), nil
}

func (s *memoryStore) Delete(bucket, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.buckets[bucket], key)
	return nil
}

func (s *memoryStore) All(bucket string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.buckets[bucket]), nil
}
