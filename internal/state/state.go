// Package state keeps the gateway's small records in one bbolt database, which
// implements core.Store. Losing the file loses no box and no byte of a workspace.
package state

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/yaoapp/sbgw/core"
)

// openTimeout is how long Open waits for another process to let go of the file.
const openTimeout = 2 * time.Second

// Store is an open database.
type Store struct{ db *bbolt.DB }

var _ core.Store = (*Store)(nil)

// Open opens the database, making it if it is absent. One process at a time can
// have it open; another one gets core.ErrConflict.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("open state %s: %w: another process has it open", path, core.ErrConflict)
	}
	if err != nil {
		return nil, fmt.Errorf("open state %s: %w", path, err)
	}
	return &Store{db: db}, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Put implements core.Store.
func (s *Store) Put(bucket, key string, value []byte) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		return b.Put([]byte(key), value)
	})
	if err != nil {
		return fmt.Errorf("keep %s %q: %w", bucket, key, err)
	}
	return nil
}

// Get implements core.Store.
func (s *Store) Get(bucket, key string) ([]byte, error) {
	var value []byte
	err := s.db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			value = clone(b.Get([]byte(key)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s %q: %w", bucket, key, err)
	}
	return value, nil
}

// Delete implements core.Store.
func (s *Store) Delete(bucket, key string) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			return b.Delete([]byte(key))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete %s %q: %w", bucket, key, err)
	}
	return nil
}

// All implements core.Store.
func (s *Store) All(bucket string) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			all[string(k)] = clone(v)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", bucket, err)
	}
	return all, nil
}

// clone copies what is valid within a transaction only. An absent record is nil
// and stays nil, an empty one stays empty.
func clone(v []byte) []byte {
	if v == nil {
		return nil
	}
	return append([]byte{}, v...)
}
