// Package volume is the Volume service, sbgw.volume.v1: a Server that serves
// directory trees, the Client that reaches one, and FS, a Client as a
// workspace.FS. A volume is one directory tree; its objects are named by handles
// that stand for a device, an inode and its generation, so that a name which
// another process points elsewhere never turns into the wrong file.
//
// On the server, a channel (channel.go) reads requests and gives each to an op
// (op*.go), which works in a session (session.go: opens, locks, references,
// answers kept for replay) on a volume (volume.go, object.go: the table of
// objects). A watcher (watch.go) turns what other processes do to the tree into
// numbered events in a feed (feed.go), and barrier.go makes a point in that feed
// known to be after everything that was complete. On the client, Client keeps
// one session over any number of links (link.go) and replays what was in flight.
//
// Lock order: Server.mu, session.mu, open.mu, watcher.mu, volume.mu, feed.mu; a
// channel's send lock comes before feed.mu and is never taken with another held.
package volume
