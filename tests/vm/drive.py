#!/usr/bin/env python3
"""Drives one virtual machine through everything that only a real host shows: drive.py KIT PARCEL WORK [--smoke] [--report FILE]

KIT is what tests/vm/image made, PARCEL a tar of the installed tree, WORK a directory for this run. Prints one table;
the exit code is 1 if a row failed.
"""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from machine import Failure, Machine

# An emulated machine boots in half a minute; a busy host makes it several.
BOOT = 400
# One step of the service, under the same conditions.
STEP = 180
UNIT = "/system.slice/salaam.service"
DROP_IN = "/run/systemd/system/salaam.service.d/test.conf"
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Host:
    """The machine as an administrator, an operator and a stranger see it."""

    def __init__(self, machine):
        self.machine = machine
        # When the command that is to be cut off had written its line, in seconds since 1970.
        self.begun = 0

    def sh(self, script, within=STEP, code=0):
        """Runs a script as root and returns what it said; any other exit code than `code` fails."""
        got, said = self.machine.run("set -eu\n" + script, within)
        if got != code:
            raise Failure(f"exit code {got} instead of {code}: {script.strip()}\n{said.strip()}")
        return said.strip()

    def alice(self, command, code=0):
        """The same as the operator, in the workspace."""
        return self.sh(f"cd /srv/project; runuser -u alice -- {command}", code=code)

    def shown(self, *names):
        """Properties of the unit."""
        lines = self.sh("systemctl show salaam " + " ".join(f"-p {name}" for name in names)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def health(self):
        return json.loads(self.alice("salaam health --json"))

    def begin(self):
        """Starts a command that does not end by itself, and returns its operation once it runs."""
        self.alice("setsid --fork salaam run --yes --detach -- sh -c 'echo began >>log; exec sleep 1000' >/dev/null 2>&1")
        self.sh("until grep -q began /srv/project/log; do sleep 0.2; done", within=60)
        rows = [json.loads(line) for line in self.alice("salaam operation list --json").splitlines()]
        running = [row["operation"] for row in rows if row["state"] == "dispatched"]
        need(len(running) == 1, f"running: {running}")
        self.begun = int(self.sh("date +%s"))
        return running[0]

    def settled(self, operation):
        """What came of an operation that was cut off: its state. It ran once, and the journal holds."""
        self.sh("until systemctl is-active -q salaam; do sleep 0.5; done")
        state = json.loads(self.alice(f"salaam operation show {operation} --json"))["state"]
        # A power cut may have taken the line with it; nothing syncs it, because that would sync the journal too.
        lines, written = self.sh(
            "cd /srv/project; [ -e log ] || touch -d @0 log; grep -c began log || true; stat -c %Y log").split()
        need(int(lines) <= 1 and int(written) <= self.begun, f"the command ran again: {lines} lines, the last at {written}")
        need(self.sh("pgrep -u salaam-tools sleep || echo none") == "none", "the command outlived its service")
        self.verify()
        self.sh("rm -f /srv/project/log")
        return state

    def verify(self):
        """The journal by the product's word, and its export by ten lines of Python outside."""
        self.alice("salaam journal verify")
        export = self.alice("salaam journal export")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(export + "\n")
            file.flush()
            checked = subprocess.run([sys.executable, ROOT / "tests/verify_export.py", file.name],
                                     capture_output=True, text=True, check=False)
        need(checked.returncode == 0, f"the export does not verify: {checked.stderr}")
        return checked.stdout.split(",")[0]

    def drop_in(self, *lines):
        """Puts lines into [Service] of the unit; none takes the drop-in away."""
        text = "\n".join(("[Service]", *lines))
        made = f"mkdir -p $(dirname {DROP_IN}); cat >{DROP_IN} <<'END'\n{text}\nEND" if lines else f"rm -f {DROP_IN}"
        self.sh(f"{made}\nsystemctl daemon-reload; systemctl reset-failed salaam 2>/dev/null || true")

    def follow(self, fix):
        """Types what was printed."""
        self.sh(f"cat >/root/fix <<'FIX'\n{fix}\nFIX\nsh /root/fix")

    def restart(self):
        self.sh("systemctl restart salaam")


def need(holds, otherwise):
    if not holds:
        raise Failure(otherwise)


# --- the rows ---------------------------------------------------------------------------------------------------

def boots(host):
    seconds = host.machine.start(BOOT)
    kernel, systemd, sudo = host.sh(
        "uname -r; systemctl --version | sed -n '1s/ (.*//p'; sudo --version | sed -n '1s/Sudo version //p'").splitlines()
    need("landlock" in host.sh("cat /sys/kernel/security/lsm"), "the kernel has no landlock")
    apparmor = host.sh("cat /sys/module/apparmor/parameters/enabled")
    return f"Linux {kernel}, {systemd}, sudo {sudo}, AppArmor {apparmor}, up in {seconds:.0f} s"


def is_set_up(host):
    host.sh("tar -xf /dev/vdb -C /; systemctl daemon-reload")
    complaints = host.sh("systemd-analyze verify salaam.service 2>&1")
    need(not complaints, f"systemd-analyze verify: {complaints}")
    host.sh("systemd-sysusers salaam.conf")
    setup = ("salaam host setup --service-user salaam --operators-group salaam-operators --operator alice "
             "--workspace /srv/project")
    host.sh(setup)
    again = host.sh(f"{setup} --dry-run")
    before = host.sh("stat -c '%a %U:%G %n' /var/lib/salaam /var/lib/salaam/*")
    host.sh("systemd-tmpfiles --create salaam.conf")
    need(host.sh("stat -c '%a %U:%G %n' /var/lib/salaam /var/lib/salaam/*") == before, "tmpfiles.d and setup disagree")
    changes = [line for line in again.splitlines() if re.match(r"(useradd|groupadd|usermod|gpasswd|install) ", line)]
    need(not changes, f"set-up is not idempotent: {changes}")
    return "sysusers.d, host setup and tmpfiles.d agree; systemd-analyze verify has no complaint"


def starts(host):
    begun = time.monotonic()
    host.sh("systemctl start salaam")
    seconds = time.monotonic() - begun
    # Ready means that this very request is served, with no waiting in between.
    health = host.health()
    need(health["status"] == "ok", f"health: {health['warnings']} {failing(health)}")
    sandbox = health["tool_execution"]["sandbox"]
    host.alice("salaam workspace add /srv/project --name project")
    return (f"ready in {seconds:.1f} s, health ok, {health['tool_execution']['isolation']}, "
            f"landlock ABI {sandbox['landlock_abi']}")


def failing(health):
    return {probe["id"]: probe["evidence"] for probe in health["tool_execution"]["probes"] if probe["result"] != "pass"}


def runs_a_command(host):
    said = host.alice("salaam run --yes --json -- sh -c 'id -un; cat /proc/self/oom_score_adj; echo written >file'")
    result = json.loads(said)
    need(result["state"] == "completed" and result["exit_code"] == 0, said)
    account, score = result["output"]["stdout"]["text"].split()
    need((account, score) == ("salaam-tools", "1000"), said)
    need(host.sh("stat -c %U /srv/project/file") == "salaam-tools", "the file is not the tools user's")
    layers = result["sandbox"]
    return f"as {account}, oom_score_adj {score}, {layers['backend']} {layers['version']}, landlock {layers['landlock']}"


def holds_everything_in_its_control_group(host):
    executor = host.health()["tool_execution"]["executors"][0]
    for pid in (executor["pid"], executor["sudo_pid"]):
        place = host.sh(f"cat /proc/{pid}/cgroup").split("::")[1]
        need(place == f"{UNIT}/tools/executor", f"{pid} is in {place}")
    status = host.sh("cat /proc/$(systemctl show -p MainPID --value salaam)/status")
    value = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    need(int(value["CapEff"], 16) == 0 and value["NoNewPrivs"] == "0", status)
    # DAC_READ_SEARCH, KILL, SETGID, SETUID, SYS_RESOURCE, AUDIT_WRITE (linux/capability.h).
    wanted = sum(1 << bit for bit in (2, 5, 6, 7, 24, 29))
    need(int(value["CapBnd"], 16) == wanted, f"bounding set {value['CapBnd']}")
    return f"sudo and the executor are in tools/executor; no capability, bounding set {wanted:x}"


def turns_a_stranger_away(host):
    said = host.sh("cd /; runuser -u bob -- salaam health", code=3)
    return said.splitlines()[0]


def has_control_groups(host):
    """Where everything is, and the numbers that the kernel holds."""
    group = host.health()["tool_execution"]["control_group"]
    need(group["held"] and group["name"] == UNIT and group["controllers"] == ["memory", "pids", "cpu"], group)
    main = host.shown("MainPID")["MainPID"]
    need(host.sh(f"cat /proc/{main}/cgroup").endswith(f"{UNIT}/service"), "the service is not in its leaf")
    owners = set(host.sh(f"cd /sys/fs/cgroup{UNIT}; stat -c '%U %a' tools $(find tools -type d) tools/cgroup.procs tools/command-1/cgroup.procs").splitlines())
    # What the executor looks into is shown; the files in it can be written by their owner alone.
    need(owners == {"salaam 700", "salaam 755", "salaam 644"}, f"tools belongs to {owners}")
    most, tasks = host.sh(f"cd /sys/fs/cgroup{UNIT}/tools; cat memory.max pids.max").split()
    # The kernel counts memory in pages.
    need((int(most) >> 12, int(tasks)) == (group["memory_bytes"] >> 12, group["tasks"]), f"{most} {tasks} instead of {group}")
    total = 1024 * int(host.sh("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"))
    need(int(most) <= total * 7 // 8 + 1, f"commands may use {most} of {total}")
    result = json.loads(host.alice("salaam run --yes --json -- true"))
    need(result["sandbox"]["cgroup"] == ["memory", "pids", "cpu"], result["sandbox"])
    return f"the service in `service`, commands in `tools` with {int(most) >> 20} MiB and {tasks} tasks, all of it the service user's"


# Memory that is nobody's private data, and so outside of RLIMIT_DATA; what is touched, in MiB.
EATERS = {
    "a shared mapping": "import mmap; m = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1",
    "a memfd": "import os; f = os.memfd_create('x'); [os.write(f, bytes(1 << 20)) for _ in range(1024)]",
    "eight processes": "import os, time\nfor _ in range(8):\n  if os.fork() == 0:\n    b = bytearray(128 << 20)\n"
                       "    for i in range(0, len(b), 4096): b[i] = 1\n    time.sleep(20); os._exit(0)\n"
                       "for _ in range(8): os.wait()",
}
# Starts 150 processes that nobody waits for, each forked twice and in a session of its own, and says how many there are.
# It begins when it is told to.
FORKS = ("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nn = 0\nfor _ in range(150):\n"
         "  r, w = os.pipe()\n  try: p = os.fork()\n  except OSError: break\n"
         "  if p == 0:\n    os.setsid()\n    try:\n      if os.fork() == 0:\n        os.write(w, b'1'); time.sleep(120)\n"
         "    except OSError: pass\n    os._exit(0)\n  os.close(w); n += len(os.read(r, 1)); os.close(r); os.waitpid(p, 0)\nprint(n)")
SMALL = "[limits]\nmemory_bytes = 268435456\ntmp_bytes = 67108864\nprocesses = 64\n"


def limited(host, text, *lines):
    """Other limits, or those of the defaults, and lines for the unit."""
    config = "/var/lib/salaam/config/host.toml"
    made = f"cat >{config} <<'END'\n{text}END\nchown salaam: {config}; chmod 600 {config}" if text else f"rm -f {config}"
    host.sh("systemctl stop salaam")
    host.sh(f"{made}\ncd /; runuser -u salaam -- salaam host plan --pin >/dev/null")
    host.drop_in(*lines)
    host.sh("systemctl start salaam")


def python(host, program):
    """The result of a command that runs this program, whatever its exit code."""
    written(host, program)
    return json.loads(host.sh("cd /srv/project; runuser -u alice -- salaam run --yes --json -- python3 program 2>/dev/null || true"))


def written(host, program):
    """Puts the program into the workspace."""
    host.sh(f"cat >/srv/project/program <<'END'\n{program}\nEND\nchmod 644 /srv/project/program")


def bomb(host, lifted):
    """What a fork bomb comes to: how many it says there are, and how many were ended with it.

    With `lifted`, root takes RLIMIT_NPROC from it before it begins.
    """
    written(host, FORKS)
    lift = "prlimit --pid $bomb --nproc=unlimited:unlimited" if lifted else "true"
    said = host.sh(
        "cd /srv/project; rm -f go; runuser -u alice -- salaam run --yes --json -- python3 program >/root/said 2>/dev/null & run=$!\n"
        "until bomb=$(pgrep -u salaam-tools -x python3); do kill -0 $run; sleep 0.1; done\n"
        f"{lift}; touch /srv/project/go; wait $run || true; rm -f /srv/project/go; cat /root/said")
    result = json.loads(said)
    need(result["state"] == "completed" and result["exit_code"] == 0, said)
    return int(result["output"]["stdout"]["text"]), result["left_processes"]


def holds_memory_of_every_kind(host):
    def kernel():
        return int(host.sh("dmesg | grep -c 'Memory cgroup out of memory' || true"))

    evidence, peak = [], 0
    try:
        # First without the layer: the kernel ends none of it, only the executor, once it has seen it.
        limited(host, SMALL, "Delegate=no")
        need(host.health()["tool_execution"]["control_group"]["held"] is False, "a group without Delegate=")
        before = kernel()
        for name, program in EATERS.items():
            result = python(host, program)
            need(result["sandbox"].get("cgroup", []) == [], f"{name}: {result}")
        need(kernel() == before, "the kernel ended something without a group")
        limited(host, SMALL)
        before, kernel_before = host.shown("MainPID"), kernel()
        for name, program in EATERS.items():
            result = python(host, program)
            need(result["signal"] == 9 and result.get("limit") == "memory_bytes", f"{name}: {result}")
            evidence.append(name)
        peak = max(int(most) for most in host.sh(f"cat /sys/fs/cgroup{UNIT}/tools/command-*/memory.peak").split())
        need(peak <= 384 << 20, f"one has had {peak} bytes")
        ended = kernel() - kernel_before
        need(ended > 0, "the kernel ended none of it")
        need(json.loads(host.alice("salaam run --yes --json -- true"))["exit_code"] == 0, "the next command")
        need(host.shown("MainPID", "NRestarts") == {**before, "NRestarts": "0"}, "the service is another process")
    finally:
        limited(host, "")
    return (f"1 GiB each as {', '.join(evidence)}: all ended, {peak >> 20} of 384 MiB at the most, {ended} times by the kernel, "
            "which without delegation ended none; the service is the same process")


def holds_a_fork_bomb(host):
    def turned_down():
        """How many forks the groups of commands did not let happen."""
        return int(host.sh(f"cat /sys/fs/cgroup{UNIT}/tools/command-*/pids.events | awk '/^max/ {{ n += $2 }} END {{ print n }}'"))

    try:
        # First without the layer. What the user namespace counts holds it as well, until root takes that away.
        limited(host, SMALL, "Delegate=no")
        counted, _ = bomb(host, lifted=False)
        need(10 < counted <= 64, f"with RLIMIT_NPROC alone there are {counted}")
        without, left = bomb(host, lifted=True)
        need(without == 150 and left >= without, f"with neither there are {without}, of which {left} were ended")
        limited(host, SMALL)
        before, refused = host.shown("MainPID"), turned_down()
        held, left = bomb(host, lifted=True)
        need(10 < held <= 64 and left >= held, f"with a limit of 64 there are {held}, of which {left} were ended")
        refused = turned_down() - refused
        need(refused > 0, "the control group turned no fork down")
        need(json.loads(host.alice("salaam run --yes --json -- true"))["exit_code"] == 0, "the next command")
        need(host.shown("MainPID") == before, "the service is another process")
        need(host.sh("pgrep -c -u salaam-tools -x python3 || true") == "0", "some are left")
    finally:
        limited(host, "")
    return (f"150 asked for, each twice forked in a session of its own, limit 64: {counted} by RLIMIT_NPROC alone; with that "
            f"lifted by root {without} without delegation, {held} with it ({refused} forks turned down by pids.max); none is left")


def replaces_a_wedged_executor(host):
    operation = host.begin()
    executor = host.health()["tool_execution"]["executors"][0]
    host.sh(f"kill -STOP {executor['pid']}; kill -KILL {executor['sudo_pid']}")
    begun = time.monotonic()
    while True:
        executors = host.health()["tool_execution"]["executors"]
        if executors and executors[0]["pid"] != executor["pid"]:
            break
        need(time.monotonic() - begun < STEP, "no new executor")
        time.sleep(1)
    seconds = time.monotonic() - begun
    state = host.settled(operation)
    need(state == "unknown", f"the operation is {state}")
    need(host.sh(f"[ ! -e /proc/{executor['pid']} ] && echo gone") == "gone", "the old executor is there")
    host.alice("salaam run --yes -- true")
    return f"SIGSTOP for it, SIGKILL for its sudo: the next one after {seconds:.0f} s, the operation is unknown, nothing is left"


def starts_again_in_its_group(host):
    group = f"/sys/fs/cgroup{UNIT}"
    for _ in range(3):
        host.restart()
        need(host.health()["tool_execution"]["control_group"]["held"], "no group after a restart")
    host.begin()
    executor = host.health()["tool_execution"]["executors"][0]
    main = host.shown("MainPID", "NRestarts")
    host.sh(f"kill -STOP {executor['pid']}; kill -KILL {main['MainPID']}")
    host.sh(f"until [ $(systemctl show -p NRestarts --value salaam) != {main['NRestarts']} ] && systemctl is-active -q salaam; "
            "do sleep 0.5; done")
    need(host.health()["tool_execution"]["control_group"]["held"], "no group after a crash")
    need(host.sh("pgrep -u salaam-tools sleep || echo none") == "none", "the command outlived its service")
    host.sh("rm -f /srv/project/log; systemctl stop salaam")
    need(host.sh(f"[ ! -e {group} ] && echo none || find {group} -type d") == "none", "groups are left")
    host.sh("systemctl start salaam")
    return "three restarts, and a crash that leaves a stopped executor: each has its groups; `systemctl stop` leaves none"


def stops(host):
    begun = time.monotonic()
    host.sh("systemctl stop salaam")
    seconds = time.monotonic() - begun
    shown = host.shown("Result", "ExecMainStatus", "ActiveState")
    need(shown == {"Result": "success", "ExecMainStatus": "0", "ActiveState": "inactive"}, shown)
    need(host.sh("pgrep -u salaam,salaam-tools || echo none") == "none", "a process was left")
    host.sh("runuser -u salaam -- salaam journal verify")
    return f"in {seconds:.1f} s, exit code 0, no process left, the journal verifies"


def outlives_a_command_that_eats_the_memory(host):
    host.restart()
    before = host.shown("MainPID")
    said = host.alice("salaam run --yes --json -- tail /dev/zero", code=137)
    result = json.loads(said)
    need(result["signal"] == 9, said)
    killed = host.sh("dmesg | grep -o 'ut of memory: Killed process [0-9]* ([a-z]*)' | tail -n 1")
    need(killed.endswith("(tail)"), f"the kernel killed something else: {killed}")
    after = host.shown("MainPID", "NRestarts", "ActiveState")
    need(after == {**before, "NRestarts": "0", "ActiveState": "active"}, after)
    return "the kernel killed the command, the service is the same process"


def is_restarted_when_it_hangs(host):
    host.drop_in("WatchdogSec=8")
    host.restart()
    before = host.shown("MainPID")
    time.sleep(20)
    need(host.shown("MainPID", "NRestarts") == {**before, "NRestarts": "0"}, "the watchdog starved in good health")
    operation = host.begin()
    host.sh(f"kill -STOP {before['MainPID']}")
    host.sh("until [ $(systemctl show -p NRestarts --value salaam) = 1 ]; do sleep 0.5; done")
    state = host.settled(operation)
    need(state == "unknown", f"the operation is {state}")
    host.drop_in()
    return "fed for 20 s of WatchdogSec=8; stopped by SIGSTOP it is killed and restarted, the operation is unknown"


def refuses_under_no_new_privileges(host):
    for directive in ("NoNewPrivileges=yes", "RestrictSUIDSGID=yes"):
        host.drop_in(directive)
        mark = host.sh("date '+%F %T'; sleep 1")
        host.sh("systemctl restart salaam", code=1)
        shown = host.shown("ExecMainStatus", "NRestarts")
        need(shown == {"ExecMainStatus": "3", "NRestarts": "0"}, f"{directive}: {shown}")
        said = host.sh(f"journalctl -q -u salaam -o cat --since '{mark}'")
        need("no-new-privs" in said and "remove NoNewPrivileges=" in said, f"{directive}: {said}")
    # What the fix says.
    host.drop_in()
    host.restart()
    need(host.health()["status"] == "ok", "the fix does not mend it")
    return "no-new-privs with its fix, exit code 3, not tried again; the same for RestrictSUIDSGID=yes, which implies it"


def degrades_without_user_namespaces(host):
    host.sh("sysctl -q -w kernel.unprivileged_userns_clone=0")
    try:
        host.restart()
        health = host.health()
        need(health["status"] == "degraded", "health says ok")
        probes = {probe["id"]: probe for probe in health["tool_execution"]["probes"] if probe["result"] != "pass"}
        need("sandbox-userns" in probes, f"failing: {list(probes)}")
        fix = probes["sandbox-userns"]["fix"]
        need("kernel.unprivileged_userns_clone" in fix, fix)
        said = host.alice("salaam run --yes -- true", code=125)
        need("sandbox-userns" in said, said)
    except Failure:
        host.sh("sysctl -q -w kernel.unprivileged_userns_clone=1")
        raise
    host.follow(fix)
    host.restart()
    need(host.health()["status"] == "ok", "the fix does not mend it")
    host.alice("salaam run --yes -- true")
    return "health degraded, the command refused with sandbox-userns; mended by the fix that it names"


def opens_no_session_of_pam(host):
    stack = "/etc/pam.d/sudo"
    rule = "/etc/sudoers.d/salaam-$(id -u salaam)"
    host.sh(f"cp -p {stack} /root/stack; cp -p {rule} /root/rule; echo 'session optional pam_systemd.so' >>{stack}")
    try:
        host.restart()
        executor = host.health()["tool_execution"]["executors"][0]["pid"]
        place = host.sh(f"cat /proc/{executor}/cgroup").split("::")[1]
        need(place == f"{UNIT}/tools/executor", f"the executor is in {place}")
        # What it is good for: a session starts a service manager of the tools user's, with a bus.
        host.sh(f"sed -i 's/ !pam_session,//' {rule}")
        host.drop_in()
        mark = host.sh("date '+%F %T'; sleep 1")
        host.sh("systemctl restart salaam", code=1)
        said = host.sh(f"journalctl -q -u salaam -o cat --since '{mark}'")
        need("session-bus-socket-reachable" in said, said)
    finally:
        host.sh(f"cp -p /root/stack {stack}; cp -p /root/rule {rule}; loginctl terminate-user salaam-tools || true\n"
                "until [ ! -e /run/user/$(id -u salaam-tools)/systemd/private ]; do sleep 0.2; done", within=60)
        host.drop_in()
        host.restart()
    return f"with pam_systemd in sudo's stack the executor stays in {place}; without `!pam_session` the start is refused"


def warns_of_what_could_stay_behind(host):
    def found(probe):
        rows = {row["id"]: row for row in json.loads(host.alice("salaam doctor --json"))["probes"]}
        return rows[probe]

    need(found("can-linger")["result"] == "pass" and found("can-cron")["result"] == "pass", "set-up did not deny it")
    denied = host.sh("runuser -u salaam-tools -- loginctl --no-ask-password enable-linger $(id -u salaam-tools)", code=1)
    # polkit's own default is yes; set-up wrote the rule that says no.
    breaks = {
        "can-linger": "mv /etc/polkit-1/rules.d/50-salaam-salaam-tools.rules /root/rules",
        "can-cron": "sed -i '/^salaam-tools$/d' /etc/cron.deny",
    }
    for probe, broken in breaks.items():
        host.sh(f"{broken}; sleep 1")
        row = found(probe)
        need(row["result"] == "warn", f"{probe}: {row}")
        host.follow(row["fix"])
        host.sh("sleep 1")
        row = found(probe)
        need(row["result"] == "pass", f"{probe} after its fix: {row}")
    return f"can-linger and can-cron are warned of and mended by their fixes; as set up: {denied.splitlines()[-1]}"


def refuses_a_bus_of_the_tools_user(host):
    host.sh("loginctl enable-linger salaam-tools; until [ -S /run/user/$(id -u salaam-tools)/systemd/private ]; do sleep 0.2; done")
    host.drop_in()
    host.sh("systemctl restart salaam", code=1)
    need(host.shown("ExecMainStatus") == {"ExecMainStatus": "3"}, "it started")
    report = json.loads(host.sh("cd /; runuser -u salaam -- salaam doctor --json", code=3))
    failed = [row for row in report["probes"] if row["result"] == "fail"]
    need([row["id"] for row in failed] == ["session-bus-socket-reachable"], f"failed: {failed}")
    host.follow(failed[0]["fix"])
    host.drop_in()
    host.restart()
    need(host.health()["status"] == "ok", "the fix does not mend it")
    return f"a lingering tools user has a service manager: {failed[0]['evidence']}; mended by the fix"


def runs_a_second_instance(host):
    def bob(command, code=0):
        return host.sh(f"cd /srv/beta; runuser -u bob -- salaam --instance beta {command}", code=code)

    host.sh("salaam host setup --service-user beta --tools-user beta-tools --group beta-work "
            "--operators-group beta-operators --operator bob --workspace /srv/beta")
    try:
        complaints = host.sh("systemd-analyze verify salaam@beta.service 2>&1")
        need(not complaints, f"systemd-analyze verify: {complaints}")
        host.sh("systemctl start salaam@beta")
        bob("workspace add /srv/beta --name beta")
        account = json.loads(bob("run --yes --json -- id -un"))["output"]["stdout"]["text"].strip()
        group = json.loads(bob("health --json"))["tool_execution"]["control_group"]
        need(group["held"] and group["name"].endswith("/salaam@beta.service"), group)
        need(account == "beta-tools", f"the command ran as {account}")
        listed = host.alice("salaam health", code=2)
        need("beta" in listed and "salaam" in listed, listed)
        bob("health")
        turned = host.alice("salaam --instance beta health", code=3)
        host.sh("runuser -u salaam-tools -- ls /srv/beta", code=2)
        host.sh("runuser -u beta-tools -- ls /srv/project", code=2)
        host.sh("systemctl stop salaam@beta")
        need(host.shown("ActiveState") == {"ActiveState": "active"}, "the first one stopped, too")
    finally:
        host.sh("systemctl stop salaam@beta; rm -rf /srv/beta; salaam host setup --service-user beta --undo")
    host.alice("salaam run --yes -- true")
    return f"`systemctl start salaam@beta`: its command ran as {account}; to others: {turned.splitlines()[0]}"


def survives_a_reboot(host):
    host.sh("systemctl enable -q salaam")
    operation = host.begin()
    host.machine.send("systemctl reboot")
    host.machine.wait_for_boot(BOOT)
    state = host.settled(operation)
    # The service was told to stop, ended the command and has the proof: that is a receipt.
    need(state in ("cancelled", "unknown"), f"the operation is {state}")
    return f"in the middle of a command: started again by itself, the operation is {state}, {host.verify()} verify"


def survives_a_reboot_at_once(host):
    operation = host.begin()
    host.machine.send("reboot --force --force")
    host.machine.wait_for_boot(BOOT)
    state = host.settled(operation)
    need(state == "unknown", f"the operation is {state}")
    return f"in the middle of a command: the operation is unknown and was not run again, {host.verify()} verify"


def survives_a_power_cut(host):
    operation = host.begin()
    host.machine.cut_power()
    host.machine.start(BOOT)
    state = host.settled(operation)
    need(state == "unknown", f"the operation is {state}")
    host.alice("salaam run --yes -- true")
    return f"in the middle of a command: the operation is unknown and was not run again, {host.verify()} verify"


SMOKE = [
    ("the machine boots", boots),
    ("it is set up", is_set_up),
    ("`systemctl start salaam`", starts),
    ("an operator runs a command", runs_a_command),
    ("control groups", has_control_groups),
    ("a wedged executor", replaces_a_wedged_executor),
    ("`systemctl stop salaam`", stops),
]
WHOLE = [
    *SMOKE[:6],
    ("the unit holds the executor", holds_everything_in_its_control_group),
    ("somebody who is no operator", turns_a_stranger_away),
    SMOKE[6],
    ("out of memory", outlives_a_command_that_eats_the_memory),
    ("memory of every kind", holds_memory_of_every_kind),
    ("a fork bomb", holds_a_fork_bomb),
    ("restarts in one control group", starts_again_in_its_group),
    ("a hung service", is_restarted_when_it_hangs),
    ("`NoNewPrivileges=yes` by a drop-in", refuses_under_no_new_privileges),
    ("`kernel.unprivileged_userns_clone=0`", degrades_without_user_namespaces),
    ("pam_systemd in sudo's stack", opens_no_session_of_pam),
    ("lingering and cron", warns_of_what_could_stay_behind),
    ("a session bus of the tools user", refuses_a_bus_of_the_tools_user),
    ("a second instance", runs_a_second_instance),
    ("`systemctl reboot`", survives_a_reboot),
    ("`reboot --force --force`", survives_a_reboot_at_once),
    ("a power cut", survives_a_power_cut),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kit")
    parser.add_argument("parcel")
    parser.add_argument("work")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--report", type=pathlib.Path)
    given = parser.parse_args()
    # Asked to end, the machine goes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine(given.kit, given.work, given.parcel)
    host = Host(machine)
    table, failed = [], 0
    try:
        for name, row in SMOKE if given.smoke else WHOLE:
            begun = time.monotonic()
            try:
                outcome, evidence = "ok", row(host)
            except (Failure, KeyError, ValueError) as error:
                outcome, evidence, failed = "FAILED", f"{type(error).__name__}: {error}", failed + 1
            seconds = time.monotonic() - begun
            print(f"{outcome}: {name} ({seconds:.0f} s): {evidence}", flush=True)
            table.append((name, outcome, evidence.splitlines()[0], f"{seconds:.0f}"))
            # Nothing after these makes sense without them.
            if failed and row in (boots, is_set_up, starts):
                break
            if outcome != "ok" and not machine.answers():
                machine.cut_power()
                machine.start(BOOT)
    finally:
        machine.cut_power()
    lines = ["| what | outcome | evidence | s |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    print("\n" + "\n".join(lines))
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        packages = ", ".join((pathlib.Path(given.kit) / "packages").read_text().splitlines())
        given.report.write_text(
            "# A whole host\n\n"
            "`sudo tests/campaign vm`: Debian with systemd as process 1, in an emulated machine (qemu, TCG), with the\n"
            f"release build installed. {packages}.\n\n" + "\n".join(lines) + "\n")
    print(f"\n{len(table) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
