package oci

import specs "github.com/opencontainers/runtime-spec/specs-go"

// The values in this file are those of a Docker container without options
// (github.com/moby/moby, daemon/pkg/oci).

var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func baseMounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{
			Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=67108864"}},
		// Not of Docker: the machine's sockets are in /run.
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", "size=67108864"}},
	}
}

func devices() []specs.LinuxDeviceCgroup {
	any := int64(-1)
	rule := func(kind string, major, minor int64, access string) specs.LinuxDeviceCgroup {
		d := specs.LinuxDeviceCgroup{Allow: true, Type: kind, Access: access, Major: &major, Minor: &minor}
		return d
	}
	return []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		rule("c", any, any, "m"), rule("b", any, any, "m"),
		rule("c", 1, 3, "rwm"),     // /dev/null
		rule("c", 1, 5, "rwm"),     // /dev/zero
		rule("c", 1, 7, "rwm"),     // /dev/full
		rule("c", 1, 8, "rwm"),     // /dev/random
		rule("c", 1, 9, "rwm"),     // /dev/urandom
		rule("c", 5, 0, "rwm"),     // /dev/tty
		rule("c", 5, 1, "rwm"),     // /dev/console
		rule("c", 5, 2, "rwm"),     // /dev/ptmx
		rule("c", 136, any, "rwm"), // /dev/pts/*
	}
}
