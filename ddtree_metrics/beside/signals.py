"""Lines of other programs that can matter to a server's speed: a declaration each, with lines that are of it, and look-alikes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ddtree_metrics.beside.xid import XID

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
    r"apt-daily|unattended|dnf-|packagekit|yum-cron|fwupd|snapd\.": "update",
    r"backup|borg|restic|duplicity|rsnapshot|snapper": "backup",
    r"logrotate": "log rotation",
    r"fstrim|scrub|raid-check|mdcheck|mdmonitor|smartd|updatedb|locate|man-db|tmpfiles-clean": "upkeep of disks or indexes",
}


def _unit(found: re.Match[str]) -> str:
    unit = found["unit"]
    kind = next((word for pattern, word in _JOBS.items() if re.search(pattern, unit, re.IGNORECASE)), "")
    return f"{unit} {found['verb'].lower()}" + (f" ({kind})" if kind else "")


def _first(found: re.Match[str]) -> str:
    """Return what the group that matched holds."""
    return next((value for value in found.groupdict().values() if value), "")


def _pcie(found: re.Match[str]) -> str:
    kind = (
        (found["kind"] or found["severity"] or "link lost")
        .lower()
        .replace("correctable", "corrected")
        .replace("uncorrectable", "uncorrected")
    )
    return f"PCIe error ({kind}) at {found['device']}"


def _heat(found: re.Match[str]) -> str:
    if found["what"] is None:
        return "critical temperature reached"
    if "normal" in found["how"]:
        return f"{found['what'].lower()} temperature or power is normal again"
    return f"{found['what'].lower()} {found['of']} above its limit: the CPU is throttled"


def _clock(found: re.Match[str]) -> str:
    if found["source"]:
        return f"the clock source {found['source']} is unstable"
    by = found["by"] or found["stepped"] or found["reset"]
    return "the clock was set" + (f" by {by} s" if by else "")


def _link(found: re.Match[str]) -> str:
    if found["state"]:
        return f"network {found['nic']}: link {found['state'].lower()}"
    return f"network {found['dog'] or found['hung'] or found['driver']}: reset or hung"


SIGNALS = (
    Signal(
        "xid",
        (KERNEL,),
        re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+)\b"),
        _xid,
        (
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000010, intr 10000000.",
            "NVRM: Xid (0000:af:00): 48, pid='<unknown>', name=<unknown>, Ch 00000008",
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ),
        (
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
            "NVRM: GPU at PCI:0000:65:00: GPU-12345",
            "NVRM: GPU Board Serial Number: 1651522000466",
        ),
    ),
    Signal(
        "nvswitch",
        (KERNEL,),
        re.compile(r"\bSXid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<sxid>\d+)\b"),
        _words("NVSwitch error SXid {sxid} of {gpu}"),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",),
        ("nvidia-nvswitch0: Probing device 0000:c1:00.0, Vendor Id = 0x10de",),
    ),
    Signal(
        "pcie_error",
        (KERNEL,),
        re.compile(
            r"(?P<device>\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:pciehp: Slot\(\S+\): Link Down|DPC: containment event|"
            r"AER: (?:Multiple )?(?P<kind>(?:Unc|C)orrect(?:able|ed)(?: \([\w-]+\))?) error|"
            r"(?:AER: )?PCIe Bus Error: severity=(?P<severity>\w+(?: \([\w-]+\))?))"
        ),
        _pcie,
        (
            "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
            "pcieport 0000:00:1c.5: AER: Correctable error message received from 0000:03:00.0",
            "pcieport 0000:00:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:01:00.0",
            "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "pcieport 0000:00:1c.0: pciehp: Slot(1): Link Down",
            "pcieport 0000:60:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        ),
        (
            "pcieport 0000:00:01.0: AER: enabled with IRQ 122",
            "pcieport 0000:00:1c.0: pciehp: Slot #1 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+",
            "acpi PNP0A08:00: _OSC: OS now controls [PCIeHotplug PME AER PCIeCapability LTR DPC]",
        ),
    ),
    Signal(
        "thermal",
        (KERNEL,),
        re.compile(
            r"(?P<what>Core|Package) (?P<of>temperature|power limit)(?P<how>/speed normal| normal| (?:is )?above threshold| notification)|"
            r"[Cc]ritical temperature reached"
        ),
        _heat,
        (
            "mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 123)",
            "CPU12: Package temperature is above threshold, cpu clock is throttled (total events = 44)",
            "CPU3: Package temperature/speed normal",
            "CPU0: Package power limit notification (total events = 1)",
            "thermal thermal_zone2: critical temperature reached (105 C), shutting down",
        ),
        ("thermal thermal_zone0: failed to read out thermal zone (-61)", "thermal_sys: Registered thermal governor 'step_wise'"),
    ),
    Signal(
        "machine_check",
        (KERNEL, "mcelog", "rasdaemon"),
        re.compile(
            r"\[Hardware Error\]: (?:Machine check events logged|CPU \d+: Machine Check|Corrected error|Uncorrected|"
            r"Hardware error from APEI)|"
            r"^mce: .*Hardware Error|^EDAC \S+: (?P<many>\d+) (?P<kind>CE|UE) "
        ),
        lambda found: (
            f"memory error ({'corrected' if found['kind'] == 'CE' else 'uncorrected'})"
            if found["kind"]
            else "machine check (hardware error)"
        ),
        (
            "mce: [Hardware Error]: Machine check events logged",
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: be00000000800400",
            "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
        ),
        ("mce: CPU supports 20 MCE banks", "EDAC MC: Ver: 3.0.0", "EDAC MC0: Giving out device to module skx_edac"),
    ),
    Signal(
        "oom_kill",
        (KERNEL, SYSTEMD, "systemd-oomd"),
        re.compile(
            r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+ \((?P<name>[^)]{1,40})\)|"
            r"^(?P<unit>\S+): (?:A process of this unit has been killed by the OOM killer|The kernel OOM killer killed some processes|"
            r"systemd-oomd killed \d+ process)|^Killed (?P<group>/\S+) due to memory"
        ),
        lambda found: f"out of memory: {_first(found)} was killed",
        (
            "Out of memory: Killed process 1234 (python3) total-vm:812340kB, anon-rss:1kB",
            "Memory cgroup out of memory: Killed process 99 (vllm) total-vm:1kB",
            "worker.service: A process of this unit has been killed by the OOM killer.",
            "Killed /system.slice/worker.service due to memory pressure for /system.slice being 61.20% > 60.00% for > 20s",
        ),
        ("oom_reaper: reaped process 1234 (python3), now anon-rss:0kB", "python3 invoked oom-killer: gfp_mask=0x140cca"),
    ),
    Signal(
        "clock",
        (KERNEL, SYSTEMD, "systemd-timesyncd", "chronyd", "ntpd", "ntpdate", "systemd-journald", "systemd-resolved"),
        re.compile(
            r"System clock wrong by (?P<by>-?[\d.]+) seconds|System clock was stepped by (?P<stepped>-?[\d.]+) seconds|"
            r"(?:time reset|offset) (?P<reset>[+-][\d.]+) s|(?:Forward|Backward) time jump detected|Time jumped backwards|"
            r"System clock time (?:unset or )?jumped|Time has been changed|Clock change detected|Clock: (?:inserting|deleting) leap second|"
            r"[Mm]arking clocksource '?(?P<source>[\w-]+)'? as unstable"
        ),
        _clock,
        (
            "System clock wrong by 1.234567 seconds",
            "System clock was stepped by -2.123456 seconds",
            "Time has been changed",
            "Clock change detected. Flushing caches.",
            "time reset +0.513211 s",
            "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
        ),
        (
            "Selected source 192.0.2.1",
            "Initial clock synchronization to Thu 2026-01-01 00:00:00 UTC.",
            "clocksource: Switched to clocksource tsc",
            "rtc_cmos 00:01: setting system clock to 2026-01-01T00:00:00 UTC (1767225600)",
        ),
    ),
    Signal(
        "suspend",
        (KERNEL,),
        re.compile(r"^PM: suspend (?P<what>entry|exit)"),
        lambda found: "the machine was suspended" if found["what"] == "entry" else "the machine woke up",
        ("PM: suspend entry (deep)", "PM: suspend exit"),
        ("PM: Registering ACPI NVS region",),
    ),
    Signal(
        "io_error",
        (KERNEL,),
        re.compile(
            r"(?:I/O|critical medium|critical target) error, dev (?P<dev>\w+)|Buffer I/O error on dev(?:ice)? (?P<buf>[\w-]+)|"
            r"nvme (?P<nvme>nvme\d+): (?:I/O .*timeout|controller is down)|(?:EXT4-fs|BTRFS) error \(device (?P<fs>[\w-]+)|"
            r"XFS \((?P<xfs>[\w-]+)\): .*I/O error|(?P<ata>ata\d+)(?:\.\d+)?: (?:exception Emask|hard resetting link)|"
            r"md/raid\S*?(?P<md>md\d+): Disk failure|nfs: server (?P<nfs>\S+) not responding|"
            r"\((?P<ro>[\w-]+)\): Remounting filesystem read-only"
        ),
        lambda found: f"I/O error on {_first(found)}",
        (
            "blk_update_request: I/O error, dev sda, sector 12345 op 0x0:(READ)",
            "nvme nvme0: I/O 12 QID 3 timeout, aborting",
            "nvme nvme0: I/O 258 (I/O Cmd) QID 4 timeout, reset controller",
            "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
            "EXT4-fs error (device sda1): ext4_find_entry:1455",
            "XFS (dm-0): log I/O error -5",
            "ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen",
            "nfs: server files.example not responding, still trying",
        ),
        (
            "EXT4-fs (sda1): mounted filesystem with ordered data mode",
            "XFS (dm-0): Ending clean mount",
            "nvme nvme0: 8/0/0 default/read/poll queues",
            "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
            "nfs: server files.example OK",
        ),
    ),
    Signal(
        "network",
        (KERNEL,),
        re.compile(
            r"NETDEV WATCHDOG: (?P<dog>[\w-]+)|"
            r"(?P<nic>\b(?:en|eth|ib|bond|wl)[\w-]*)(?:: \w+: \w+|: \(slave \S+\):|:)? (?:NIC )?[Ll]ink (?:is |status definitely )?"
            r"(?P<state>[Dd]own|[Uu]p)\b|(?P<hung>\b(?:en|eth|ib)\w*): (?:Reset adapter|Detected (?:Tx|Hardware) Unit Hang)|"
            r"mlx5_core (?P<driver>[0-9a-f:.]+): .*(?:[Hh]ealth issue|health recovery|device's health compromised)"
        ),
        _link,
        (
            "NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 0 timed out",
            "ixgbe 0000:03:00.0 eth0: NIC Link is Down",
            "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX",
            "mlx5_core 0000:3b:00.0 ens1f0np0: Link down",
            "bond0: (slave eth1): link status definitely down, disabling slave",
            "ixgbe 0000:03:00.0 eth1: Reset adapter",
            "mlx5_core 0000:3b:00.0: print_health_info:424:(pid 0): Health issue observed, firmware internal error",
        ),
        ("eth0: renamed from veth12345", "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", "veth1: entered promiscuous mode"),
    ),
    Signal(
        "stall",
        (KERNEL,),
        re.compile(
            r"INFO: task (?P<task>\S+?):\d+ blocked for more than (?P<s>\d+) seconds|"
            r"soft lockup - CPU#\d+ stuck for (?P<lock>\d+)s|(?:self-)?detected stalls? on CPU"
        ),
        lambda found: f"{found['task']} was blocked for more than {found['s']} s" if found["task"] else "a CPU was stuck",
        (
            "INFO: task kworker/u8:2:123 blocked for more than 120 seconds.",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
        ),
        ("watchdog: Delayed init of the lockup detector failed: -22",),
    ),
    Signal(
        "crash",
        (KERNEL, "systemd-coredump"),
        re.compile(r"^(?P<name>[^\[\n]{1,40})\[\d+\]: segfault at |^Process \d+ \((?P<core>[^)]{1,40})\) of user \d+ dumped core"),
        lambda found: f"{_first(found)} crashed",
        ("nv-hostengine[4242]: segfault at 0 ip 00007f sp 00007f error 4", "Process 4242 (dcgm-exporter) of user 0 dumped core."),
        ("traps: python3[1] general protection fault",),
    ),
    Signal(
        "unit_failed",
        (SYSTEMD,),
        re.compile(
            r"^(?P<unit>\S+\.(?:service|mount|socket|timer|scope)): (?:Failed with result '(?P<result>[^']{1,40})'|"
            r"Scheduled restart job, restart counter is at (?P<again>\d+))|^Failed to start (?P<start>\S+?\.(?:service|mount))\b"
        ),
        lambda found: (
            f"{found['unit'] or found['start']} "
            + (f"is restarted by systemd, time {found['again']}" if found["again"] else f"failed ({found['result'] or 'to start'})")
        ),
        (
            "nvidia-persistenced.service: Failed with result 'exit-code'.",
            "dcgm-exporter.service: Scheduled restart job, restart counter is at 3.",
            "Failed to start nvidia-fabricmanager.service - NVIDIA fabric manager service.",
        ),
        ("nvidia-persistenced.service: Deactivated successfully.", "dcgm-exporter.service: Consumed 1.234s CPU time."),
    ),
    Signal(
        "unit",
        (SYSTEMD,),
        re.compile(
            r"^(?P<verb>Starting|Started|Stopping|Stopped|Finished|Reloading) (?P<unit>[\w@:.\\-]+\.(?:service|timer|mount|socket))\b"
        ),
        _unit,
        (
            "Starting apt-daily-upgrade.service - Daily apt upgrade and clean activities...",
            "Stopped node-exporter.service - Prometheus exporter.",
            "Finished logrotate.service - Rotate log files.",
        ),
        (
            "Reached target multi-user.target - Multi-User System.",
            "session-12.scope: Deactivated successfully.",
            "Started session-12.scope - Session 12 of User root.",
        ),
    ),
    Signal(
        "packages",
        ("sudo", "unattended-upgrade", "unattended-upgrades", "apt.systemd.daily", "dnf", "yum", "packagekitd", "dpkg", "apt", "[RPM]"),
        re.compile(
            r"Packages that will be upgraded|^(?:Installed|Upgraded|Updated|Erased|Removed): |\b(?:install|upgrade|configure) \S+:\w+ |"
            r"transaction .*(?:install|update|upgrade)|^(?:install|upgrade|erase) \S+: success|"
            r"COMMAND=\S*\b(?:apt|apt-get|aptitude|dpkg|dnf|yum|rpm|snap|zypper)\b.*(?:install|upgrade|remove|purge|update| -i )"
        ),
        _words("packages were installed or changed"),
        (
            "root : TTY=pts/0 ; PWD=/root ; USER=root ; COMMAND=/usr/bin/apt-get install -y linux-image-amd64",
            "Packages that will be upgraded: openssl libssl3",
            "Installed: kernel-core-6.8.9-300.fc40.x86_64",
            "upgrade openssl-3.0.7-27.el9.x86_64: success",
        ),
        ("Initial blacklist: ", "No packages found that can be upgraded unattended and no pending auto-removals"),
    ),
    Signal(
        "command",
        ("sudo",),
        re.compile(r" COMMAND=\S*?(?P<name>[\w.-]{1,40})(?= |$)"),
        _words("a command was run with sudo: {name}"),
        ("ops : TTY=pts/0 ; PWD=/root ; USER=root ; COMMAND=/usr/bin/nvidia-smi -pl 250",),
        ("pam_unix(sudo:session): session opened for user root(uid=0) by (uid=1000)",),
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
        "cron",
        ("CRON", "CROND", "cron", "crond"),
        re.compile(r"^\((?P<user>[\w.-]{1,32})\) CMD \("),
        _words("a cron job of {user} began"),
        ("(root) CMD (/usr/local/bin/nightly-backup)",),
        ("(CRON) info (No MTA installed, discarding output)", "pam_unix(cron:session): session opened for user root"),
    ),
)


_VERB = re.compile(r"^(?:(?:Starting|Started|Stopping|Stopped|Finished|Reloading|Failed to start) )")


def signal_of(ident: str, message: str, about: str = "") -> tuple[Signal, str] | None:
    """Say which signal a line is, and what it says in words; None if it is none.

    Parameters
    ----------
    ident : str
        Who wrote it.
    message : str
        What it says.
    about : str
        The unit that a line of systemd is about; older systemd writes its description only.
    """
    if about and about not in message and (verb := _VERB.match(message)) is not None:
        message = f"{verb[0]}{about} - {message[verb.end() :]}"
    for signal in SIGNALS:
        if ident in signal.who and (found := signal.pattern.search(message)) is not None:
            return signal, signal.says(found)
    return None
