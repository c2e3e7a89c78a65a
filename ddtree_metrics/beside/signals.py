"""Lines of other programs that can matter to a server's speed: a declaration each, with lines that are of it and lines that only look so.

Xid numbers have the meanings of NVIDIA's published catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

XID = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing",
    44: "graphics engine fault during context switch",
    45: "preemptive cleanup, due to previous errors",
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping was recorded",
    64: "ECC page retirement or row remapping could not be recorded",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
}
"""What the numbers of NVIDIA's driver errors mean."""

KERNEL, SYSTEMD = "kernel", "systemd"


@dataclass(frozen=True, slots=True)
class Signal:
    """A kind of line.

    Attributes
    ----------
    name : str
        Short fixed name, for programs.
    who : tuple of str
        Identifiers of those who write it (``SYSLOG_IDENTIFIER``; ``kernel`` for the kernel).
    pattern : re.Pattern
        What stands in it; a match.
    says : callable
        From a match to words.
    samples, look_alikes : tuple of str
        Lines that are of it, and lines of the same writers that are not.
    """

    name: str
    who: tuple[str, ...]
    pattern: re.Pattern[str]
    says: Callable[[re.Match[str]], str]
    samples: tuple[str, ...]
    look_alikes: tuple[str, ...] = ()


def _words(text: str) -> Callable[[re.Match[str]], str]:
    return lambda found: text.format(**{name: value or "" for name, value in found.groupdict().items()}).strip()


def _xid(found: re.Match[str]) -> str:
    number = int(found["xid"])
    meaning = XID.get(number, "a number that is not in the catalogue used here")
    return f"NVIDIA Xid {number} ({meaning}) of GPU {found['gpu']}"


_JOBS = {
    r"apt-daily|unattended|dnf-|packagekit|yum-cron|fwupd": "update",
    r"backup|borg|restic|duplicity|rsnapshot|snapper": "backup",
    r"logrotate": "log rotation",
    r"fstrim|scrub|raid-check|e2scrub|smartd|updatedb|plocate|man-db": "upkeep of disks or indexes",
}


def _unit(found: re.Match[str]) -> str:
    unit = found["unit"]
    kind = next((word for pattern, word in _JOBS.items() if re.search(pattern, unit, re.IGNORECASE)), "")
    verb = {"Starting": "starting", "Started": "started", "Stopping": "stopping", "Stopped": "stopped", "Finished": "finished"}[
        found["verb"]
    ]
    return f"{unit} {verb}" + (f" ({kind})" if kind else "")


SIGNALS = (
    Signal(
        "xid",
        (KERNEL,),
        re.compile(r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+)\b"),
        _xid,
        (
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242",
        ),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", "NVRM: GPU at PCI:0000:65:00: GPU-12345"),
    ),
    Signal(
        "pcie_error",
        (KERNEL,),
        re.compile(
            r"(?:AER: (?P<kind>Corrected|Uncorrected|Multiple Corrected|Multiple Uncorrected)\b[^:]*error|"
            r"PCIe Bus Error: severity=(?P<severity>[\w ()-]+))"
        ),
        lambda found: f"PCIe error ({(found['kind'] or found['severity']).lower().strip()})",
        (
            "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
            "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        ),
        ("pcieport 0000:00:01.0: AER: enabled with IRQ 122",),
    ),
    Signal(
        "thermal",
        (KERNEL,),
        re.compile(r"(?P<what>Core|Package) temperature(?P<how>/speed normal| (?:is )?above threshold)"),
        lambda found: (
            f"{found['what'].lower()} temperature "
            + ("is normal again" if "normal" in found["how"] else "above threshold: the CPU is throttled")
        ),
        (
            "mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 123)",
            "CPU3: Package temperature/speed normal",
        ),
        ("thermal thermal_zone0: failed to read out thermal zone (-61)",),
    ),
    Signal(
        "machine_check",
        (KERNEL, "mcelog", "rasdaemon"),
        re.compile(r"\[Hardware Error\]: (?:Machine check events logged|CPU \d+: Machine Check)|^mce: .*Hardware Error"),
        _words("machine check (hardware error)"),
        ("mce: [Hardware Error]: Machine check events logged", "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: be00000000800400"),
        ("mce: CPU supports 20 MCE banks",),
    ),
    Signal(
        "oom_kill",
        (KERNEL, SYSTEMD, "systemd-oomd"),
        re.compile(
            r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+ \((?P<name>[^)]{1,40})\)|"
            r"(?P<unit>\S+): A process of this unit has been killed by the OOM killer"
        ),
        lambda found: f"out of memory: {found['name'] or found['unit']} was killed",
        (
            "Out of memory: Killed process 1234 (python3) total-vm:812340kB, anon-rss:1kB",
            "worker.service: A process of this unit has been killed by the OOM killer.",
        ),
        ("oom_reaper: reaped process 1234 (python3), now anon-rss:0kB",),
    ),
    Signal(
        "clock",
        (KERNEL, SYSTEMD, "systemd-timesyncd", "chronyd", "ntpd", "systemd-journald"),
        re.compile(
            r"System clock wrong by (?P<by>-?[\d.]+) seconds|System clock time (?:unset or )?jumped|Time has been changed|"
            r"time reset (?P<reset>[+-][\d.]+) s|clocksource: .*[Mm]arking clocksource '?\w+'? as unstable|Clock change detected"
        ),
        lambda found: (
            "the clock was set" + (f" by {found['by'] or found['reset']} s" if found["by"] or found["reset"] else "")
            if "clocksource" not in found[0]
            else "the clock source is unstable"
        ),
        (
            "System clock wrong by 1.234567 seconds",
            "Time has been changed",
            "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable",
        ),
        ("Selected source 192.0.2.1", "Initial clock synchronization to Thu 2026-01-01 00:00:00 UTC."),
    ),
    Signal(
        "io_error",
        (KERNEL,),
        re.compile(
            r"I/O error, dev (?P<dev>\w+)|Buffer I/O error on dev(?:ice)? (?P<buf>[\w-]+)|"
            r"nvme (?P<nvme>nvme\d+): .*I/O \d+.*timeout|(?:EXT4-fs|XFS|BTRFS) error \(device (?P<fs>[\w-]+)"
        ),
        lambda found: f"I/O error on {found['dev'] or found['buf'] or found['nvme'] or found['fs']}",
        (
            "blk_update_request: I/O error, dev sda, sector 12345 op 0x0:(READ)",
            "nvme nvme0: I/O 12 QID 3 timeout, aborting",
            "EXT4-fs error (device sda1): ext4_find_entry:1455",
        ),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode",),
    ),
    Signal(
        "network",
        (KERNEL,),
        re.compile(
            r"NETDEV WATCHDOG: (?P<dog>[\w-]+)|(?P<nic>\b(?:en|eth|ib|"
            r"bond)[\w-]*)(?: \S+)?: (?:NIC )?[Ll]ink (?:is )?(?P<state>[Dd]own|[Uu]p)\b|"
            r"(?P<drv>[\w-]+ [0-9a-f:.]+ [\w-]+): Reset adapter"
        ),
        lambda found: (
            f"network {found['dog'] or found['nic'] or found['drv']}: " + (f"link {found['state'].lower()}" if found["state"] else "reset")
        ),
        ("NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 0 timed out", "eth0: NIC Link is Down", "ixgbe 0000:03:00.0 eth1: Reset adapter"),
        ("eth0: renamed from veth12345",),
    ),
    Signal(
        "stall",
        (KERNEL,),
        re.compile(
            r"INFO: task (?P<task>\S+?):\d+ blocked for more than (?P<s>\d+) seconds|"
            r"soft lockup - CPU#\d+ stuck for (?P<lock>\d+)s|self-detected stall on CPU"
        ),
        lambda found: f"{found['task']} was blocked for more than {found['s']} s" if found["task"] else "a CPU was stuck",
        (
            "INFO: task kworker/u8:2:123 blocked for more than 120 seconds.",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
        ),
    ),
    Signal(
        "unit_failed",
        (SYSTEMD,),
        re.compile(r"^(?P<unit>\S+\.(?:service|mount|socket|timer|scope)): Failed with result '(?P<result>[^']{1,40})'"),
        _words("{unit} failed ({result})"),
        ("nvidia-persistenced.service: Failed with result 'exit-code'.",),
        ("nvidia-persistenced.service: Deactivated successfully.",),
    ),
    Signal(
        "unit",
        (SYSTEMD,),
        re.compile(r"^(?P<verb>Starting|Started|Stopping|Stopped|Finished) (?P<unit>[\w@:.\\-]+\.(?:service|timer|mount|scope))\b"),
        _unit,
        (
            "Starting apt-daily-upgrade.service - Daily apt upgrade and clean activities...",
            "Stopped node-exporter.service - Prometheus exporter.",
        ),
        (
            "Reached target multi-user.target - Multi-User System.",
            "session-12.scope: Deactivated successfully.",
        ),
    ),
    Signal(
        "login",
        ("sshd", "sshd-session"),
        re.compile(r"^Accepted (?P<how>\S+) for (?P<user>\S+) from"),
        _words("login over ssh"),
        ("Accepted publickey for root from 192.0.2.7 port 51234 ssh2: ED25519 SHA256:abc",),
        ("Connection closed by 192.0.2.7 port 51234 [preauth]", "Failed password for root from 192.0.2.7 port 51234 ssh2"),
    ),
    Signal(
        "packages",
        ("unattended-upgrade", "unattended-upgrades", "apt.systemd.daily", "dnf", "yum", "packagekitd", "dpkg", "apt"),
        re.compile(
            r"Packages that will be upgraded|(?:Installed|Upgraded|Updated|Erased|Removed): |\b(?:install|upgrade|"
            r"configure) \S+:\w+ |transaction .*(?:install|update|upgrade)"
        ),
        _words("packages were installed or changed"),
        ("Packages that will be upgraded: openssl libssl3", "Installed: kernel-core-6.8.9-300.fc40.x86_64"),
        ("Initial blacklist: ",),
    ),
    Signal(
        "cron",
        ("CRON", "CROND", "cron", "crond"),
        re.compile(r"^\((?P<user>[\w.-]{1,32})\) CMD \("),
        _words("a cron job of {user} began"),
        ("(root) CMD (/usr/local/bin/nightly-backup)",),
        ("(CRON) info (No MTA installed, discarding output)", "pam_unix(cron:session): session opened for user root"),
    ),
)


def signal_of(ident: str, message: str) -> tuple[Signal, str] | None:
    """Say which signal a line is, and what it says in words; None if it is none.

    Parameters
    ----------
    ident : str
        Who wrote it.
    message : str
        What it says.
    """
    for signal in SIGNALS:
        if ident in signal.who and (found := signal.pattern.search(message)) is not None:
            return signal, signal.says(found)
    return None
