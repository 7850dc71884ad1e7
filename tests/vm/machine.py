"""One virtual machine: a disk, a console log, and an agent that runs scripts inside.

Emulated by qemu (TCG), so no /dev/kvm is needed. The agent is `tests/vm/agent`, reached over a virtio port.
"""

import base64
import os
import pathlib
import select
import socket
import subprocess
import time


class Failure(Exception):
    """Something that the machine did or did not do."""


class Machine:
    """A machine with a disk of its own; `kit` is the directory that tests/vm/image made."""

    def __init__(self, kit, work, parcel):
        self.kit, self.work, self.parcel = pathlib.Path(kit), pathlib.Path(work), pathlib.Path(parcel)
        self.disk = self.work / "disk"
        self.console = self.work / "console"
        self.process = None
        self.port = None
        self.heard = b""
        self.number = 0
        self.boot = None
        subprocess.run(["cp", "--sparse=always", self.kit / "disk", self.disk], check=True)

    def start(self, within):
        """Powers it on and waits for the agent; returns the seconds that it took."""
        begun = time.monotonic()
        path = self.work / "port"
        path.unlink(missing_ok=True)
        # no_timer_check: on a busy host the emulated timer is late, and the kernel would take it for a broken one.
        kernel = "root=/dev/vda rw console=ttyS0 no_timer_check mitigations=off quiet loglevel=4 systemd.show_status=0"
        # What qemu is told not to flush is still in this machine's memory when qemu is killed: a power cut loses what
        # the guest had not written, which is what it is to lose.
        drive = "if=virtio,format=raw,cache=unsafe,file="
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
             "-m", "2048", "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none",
             "-kernel", self.kit / "vmlinuz", "-initrd", self.kit / "initrd",
             "-append", kernel,
             "-drive", f"{drive}{self.disk}", "-drive", f"{drive}{self.parcel},readonly=on",
             "-serial", f"file:{self.console}",
             "-chardev", f"socket,id=port,path={path},server=on,wait=off",
             "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=salaam.vm"],
            stdin=subprocess.DEVNULL)
        while not path.exists():
            self.check_alive()
            time.sleep(0.05)
        self.port = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port.connect(str(path))
        self.heard = b""
        self.wait_for_boot(within)
        return time.monotonic() - begun

    def wait_for_boot(self, within):
        """Waits until the agent of another boot than the last one is there."""
        end = time.monotonic() + within
        while True:
            words = self.line(end).split()
            if len(words) == 2 and words[0] == "READY" and words[1] != self.boot:
                self.boot = words[1]
                return

    def run(self, script, within=60):
        """Runs a script inside; returns its exit code and what it said."""
        self.send(script, within)
        # It is ended inside when its time is up; the answer comes later than that only from a hung machine.
        end = time.monotonic() + within + 30
        while True:
            words = self.line(end).split()
            if len(words) in (2, 3) and words[0] == str(self.number):
                said = base64.b64decode(words[2]) if len(words) == 3 else b""
                return int(words[1]), said.decode(errors="replace")

    def send(self, script, within=60):
        """Gives it a script whose answer is not waited for."""
        self.number += 1
        text = base64.b64encode(script.encode()).decode()
        self.port.sendall(f"{self.number} {within} {text}\n".encode())

    def line(self, end):
        while b"\n" not in self.heard:
            self.check_alive()
            left = end - time.monotonic()
            if left <= 0:
                raise Failure(f"the machine did not answer in time; its console ends:\n{self.tail()}")
            if select.select([self.port], [], [], min(left, 1))[0]:
                piece = self.port.recv(65536)
                if not piece:
                    raise Failure(f"the machine closed its port; its console ends:\n{self.tail()}")
                self.heard += piece
        line, self.heard = self.heard.split(b"\n", 1)
        return line.decode(errors="replace")

    def check_alive(self):
        if self.process.poll() is not None:
            raise Failure(f"qemu ended with {self.process.returncode}; the console ends:\n{self.tail()}")
        if "Kernel panic" in self.tail():
            raise Failure(f"the kernel panicked:\n{self.tail()}")

    def answers(self):
        """Whether the agent still does what it is asked."""
        try:
            return self.run("true", within=10)[0] == 0
        except (Failure, OSError):
            return False

    def tail(self):
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(text.splitlines()[-25:])

    def cut_power(self):
        """Ends it as a power cut does: nothing inside gets a word in."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.port:
            self.port.close()
            self.port = None
