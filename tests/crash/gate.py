"""A gate in front of the kernel: a program's system calls on files wait here until a test lets them pass.

The program is started through gate_exec.py, which asks the kernel (seccomp user notification) to hand every call of CALLS
to this process first. So the tested binary is the released one, no call can slip past by another wrapper, and the calls of
all threads arrive in one order. A test arms the gate with a judge, a function of one Call that answers

    PASS           the kernel does it
    KILL           the process gets SIGKILL and the call never happens
    an errno       the call never happens and fails with it
    HOLD           the caller waits until gate.release(call)

Not in CALLS are calls that neither change nor read files by name or descriptor (futex, mmap, sockets, clocks): between two
calls of the list the disk does not change, so a kill anywhere between them leaves what a kill at the second one leaves.
x86-64 Linux 5.14 or later; no privileges beyond those of a parent over its child.
"""
import ctypes
import fcntl
import functools
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
AT_FDCWD = 0xFFFFFF9C  # as an unsigned 32-bit number

# name: (number on x86-64, how its arguments name files). "f": a descriptor, "p": a path; "dp": a directory and a path.
CALLS = {
    "read": (0, "f"), "write": (1, "f"), "close": (3, "f"), "fstat": (5, "f"), "lseek": (8, "f"),
    "pread64": (17, "f"), "pwrite64": (18, "f"), "writev": (20, "f"), "access": (21, "p"), "fcntl": (72, "f"),
    "flock": (73, "f"), "fsync": (74, "f"), "fdatasync": (75, "f"), "ftruncate": (77, "f"), "rename": (82, "pp"),
    "mkdir": (83, "p"), "rmdir": (84, "p"), "link": (86, "pp"), "unlink": (87, "p"), "symlink": (88, "pp"),
    "readlink": (89, "p"), "chmod": (90, "p"), "fchmod": (91, "f"), "statfs": (137, "p"), "fstatfs": (138, "f"),
    "getdents64": (217, "f"), "openat": (257, "dp"), "mkdirat": (258, "dp"), "newfstatat": (262, "dp"),
    "unlinkat": (263, "dp"), "renameat": (264, "dpdp"), "linkat": (265, "dpdp"), "symlinkat": (266, "pdp"),
    "readlinkat": (267, "dp"), "fchmodat": (268, "dp"), "faccessat": (269, "dp"), "sync_file_range": (277, "f"),
    "fallocate": (285, "f"), "pwritev": (296, "f"), "renameat2": (316, "dpdp"), "copy_file_range": (326, "ff"),
    "statx": (332, "dp"), "openat2": (437, "dp"), "faccessat2": (439, "dp"),
}
BY_NUMBER = {number: name for name, (number, _) in CALLS.items()}
CHANGES = {"write", "pwrite64", "pwritev", "writev", "ftruncate", "fallocate", "rename", "renameat", "renameat2", "mkdir",
           "mkdirat", "rmdir", "unlink", "unlinkat", "symlink", "symlinkat", "link", "linkat", "fchmod", "fchmodat", "chmod",
           "copy_file_range"}
SYNCS = {"fsync", "fdatasync"}

PASS, KILL, HOLD = "pass", "kill", "hold"

RECEIVE, SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
O_CREAT = os.O_CREAT


@functools.lru_cache(None)
def is_supported():
    """The numbers are this machine's, and its kernel (or the container around us) lets a process install the filter."""
    probe = [sys.executable, "-c", f"import sys; sys.path.insert(0, {HERE!r}); import gate; gate.install()"]
    return platform.machine() == "x86_64" and sys.platform == "linux" and \
        subprocess.run(probe, stderr=subprocess.DEVNULL, timeout=60).returncode == 0


class Call:
    """One call that waits. `path` is what it acts on (the second name of a rename is `to`); `number` counts while armed."""

    def __init__(self, token, thread, name, args):
        self.token, self.thread, self.name, self.args = token, thread, name, args
        self.number = 0
        self.path = self.to = self.text = None
        self._resolve(CALLS[name][1])
        self.creates = self._creates()
        self.changes = name in CHANGES or self.creates  # a file or a directory may be another one afterwards

    def _resolve(self, form):
        names, at = [], 0
        while form:
            if form.startswith("dp"):
                names.append(self._join(self.args[at], self.args[at + 1]))
                form, at = form[2:], at + 2
            elif form[0] == "p":
                names.append(os.path.normpath(self.string(self.args[at])))
                form, at = form[1:], at + 1
            else:
                names.append(self._of_descriptor(self.args[at]))
                form, at = form[1:], at + 1
        if self.name in ("symlink", "symlinkat"):
            self.text = names.pop(0)
        self.path = names[0]
        self.to = names[1] if len(names) > 1 else None

    def _of_descriptor(self, fd):
        try:
            link = "cwd" if fd & 0xFFFFFFFF == AT_FDCWD else f"fd/{fd & 0xFFFFFFFF}"
            return os.readlink(f"/proc/{self.thread}/{link}")
        except OSError:
            return ""

    def _join(self, fd, pointer):
        text = self.string(pointer)
        return os.path.normpath(text) if text.startswith("/") else \
            os.path.normpath(os.path.join(self._of_descriptor(fd), text)) if text else self._of_descriptor(fd)

    def memory(self, pointer, count):
        with open(f"/proc/{self.thread}/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            return memory.read(count)

    def string(self, pointer):
        """Up to the NUL, never past the page that it starts in and the next one."""
        if not pointer:
            return ""
        text = b""
        while b"\0" not in text and len(text) < 4096:
            at = pointer + len(text)
            text += self.memory(at, 4096 - at % 4096)
        return os.fsdecode(text.split(b"\0")[0])

    def _creates(self):
        if self.name == "openat":
            return bool(self.args[2] & O_CREAT)
        if self.name == "openat2":
            return bool(struct.unpack("<Q", self.memory(self.args[2], 8))[0] & O_CREAT)
        return False

    def __repr__(self):
        return f"#{self.number} {self.name} {self.path}" + (f" -> {self.to or self.text}" if self.to or self.text else "")


class Gate:
    """Starts `command` behind the gate and serves it in a thread. A judge is shown only calls on the directories `below`."""

    def __init__(self, command, below, **popen):
        ours, theirs = socket.socketpair()
        self.below = tuple(os.path.realpath(b) for b in below)
        self._lock = threading.Lock()
        self._judge, self._count, self._seen = None, 0, []
        self._held = {}
        self._changed = threading.Condition(self._lock)
        self.problem = None
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "gate_exec.py"), str(theirs.fileno()), *command],
                                        pass_fds=[theirs.fileno(), *popen.pop("pass_fds", ())], **popen)
        theirs.close()
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        self._listener = received[0]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # -- for tests

    def arm(self, judge=lambda call: PASS):
        """From now on calls are counted from 1, kept in a list and given to the judge."""
        with self._lock:
            self._judge, self._count, self._seen = judge, 0, []

    def disarm(self):
        """The calls since arm()."""
        with self._lock:
            self._judge = None
            return self._seen

    def wait_held(self, seconds=30):
        """The first call that a judge holds."""
        with self._lock:
            assert self._changed.wait_for(lambda: self._held or self.problem, seconds), "no call was held"
            assert not self.problem, self.problem
            return next(iter(self._held.values()))

    def release(self, call, answer=PASS):
        with self._lock:
            del self._held[call.token]
        self._answer(call, answer)

    def close(self):
        self._thread.join(30)
        assert not self._thread.is_alive(), "the program still runs"
        os.close(self._listener)
        assert not self.problem, self.problem

    # -- the serving thread

    def _serve(self):
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            events = poll.poll()[0][1]
            if not events & select.POLLIN:
                return  # the last process behind the gate is gone
            try:
                self._one()
            except Exception as problem:  # a test must hear of it, and the program must not hang
                with self._lock:
                    self.problem = problem
                    self._changed.notify_all()
                self.process.kill()
                return

    def _one(self):
        note = bytearray(80)
        try:
            fcntl.ioctl(self._listener, RECEIVE, note, True)
        except OSError:
            return  # its thread died meanwhile
        token, thread, _, number, _, _, *args = struct.unpack("<QIIiIQ6Q", note)
        call = self._look(token, thread, BY_NUMBER[number], args)
        self._answer(call, self._decide(call)) if call else self._send(token, 0, CONTINUE)

    def _look(self, token, thread, name, args):
        """None: nobody is interested."""
        with self._lock:
            if not self._judge:
                return None
        try:
            call = Call(token, thread, name, args)
        except OSError:
            return None  # its thread died, or the pointer leads nowhere
        return call if any(self._inside(p) for p in (call.path, call.to) if p) else None

    def _inside(self, path):
        return any(path == b or path.startswith(b + "/") for b in self.below)

    def _decide(self, call):
        with self._lock:
            judge = self._judge
            if not judge:
                return PASS
            self._count += 1
            call.number = self._count
            self._seen.append(call)
            answer = judge(call)
            if answer == HOLD:
                self._held[call.token] = call
                self._changed.notify_all()
            return answer

    def _answer(self, call, answer):
        if answer == KILL:
            with self._lock:
                self._judge = None
            self.process.send_signal(signal.SIGKILL)
        elif answer == PASS:
            self._send(call.token, 0, CONTINUE)
        elif answer != HOLD:
            self._send(call.token, -answer, 0)

    def _send(self, token, error, flags):
        try:
            fcntl.ioctl(self._listener, SEND, struct.pack("<QqiI", token, 0, error, flags))
        except OSError:
            pass  # its thread died meanwhile


def install():
    """In the child: hands CALLS to the owner of the returned descriptor, for this process and all that it becomes."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = sorted(BY_NUMBER)
    load_number, load_arch, equal, give = 0x20, 0x20, 0x15, 0x06
    code = [(load_arch, 0, 0, 4), (equal, 1, 0, 0xC000003E), (give, 0, 0, 0x7FFF0000), (load_number, 0, 0, 0)]
    for i, number in enumerate(numbers):
        code.append((equal, len(numbers) - i, 0, number))
    code += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x7FC00000)]
    text = b"".join(struct.pack("<HBBI", *c) for c in code)
    keep = ctypes.create_string_buffer(text, len(text))
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(keep)), 16)
    if libc.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    fd = libc.syscall(317, 1, 8, ctypes.byref(program))  # seccomp(SET_MODE_FILTER, NEW_LISTENER)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return fd
