"""Renders chat templates for the server, in processes that can do nothing else.

Started by chat_worker.c with one end of a socket pair as descriptor 0, this script as descriptor 3 and
nothing else. This process (the nursery) imports Jinja, gives up the file system and the network, and forks
one child for each template; a child has its own socket to the nursery as only descriptor, limits on memory
and files, and a system call filter. The nursery itself looks at nothing but lengths and keys.

Frames, all numbers little-endian 32 bit:
  hello      length, filter program (bytes for PR_SET_SECCOMP; empty: no filter); answered by b"R"
  request    length, key (32 bytes), template length, template, request (JSON)
  answer     length, status (1 byte, see STATUS), text (UTF-8)
The same request frame goes on to the child. End of file ends every process.
"""
import ctypes
import datetime
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

import jinja2.debug
import jinja2.ext
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_MAX = 1 << 20
REQUEST_MAX = (8 << 20) + (1 << 20) + 64
TIME_S = 2.0
CHILDREN_MAX = 2
IDLE_S = 10.0  # then the children go; the next render forks one again in a few ms
CHILD_MEMORY = 160 << 20  # address space; the interpreter itself takes 28 MB of it
STATUS = {"text": 0, "refused": 1, "failed": 2, "time": 3, "died": 4, "output": 5}
TAG = "\ue000continue-here\ue001"  # no text holds this by chance

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
libc = ctypes.CDLL(None, use_errno=True)


# ---- frames ----

def read_exact(sock, n):
    parts = []
    while n > 0:
        part = sock.recv(min(n, 1 << 20))
        if not part:
            return None
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def read_frame(sock, limit):
    head = read_exact(sock, 4)
    if head is None:
        return None
    n = struct.unpack("<I", head)[0]
    return read_exact(sock, n) if n <= limit else None


def frame(body):
    return struct.pack("<I", len(body)) + body


def answer(status, text):
    """What a person reads: one line, short enough for an error message."""
    line = " ".join(text.split()).encode("utf-8", "replace")[:240]
    return frame(bytes([STATUS[status]]) + line.decode("utf-8", "ignore").encode("utf-8"))


# ---- walls ----

def shut_files_and_network():
    """Landlock: no right on any path, no TCP. Older kernels lack it; the filter of the children stays."""
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return
    files = (1 << {1: 13, 2: 14}.get(abi, 15)) - 1
    rules = struct.pack("<QQ", files, 3) if abi >= 4 else struct.pack("<Q", files)
    fd = libc.syscall(LANDLOCK_CREATE_RULESET, rules, len(rules), 0)
    if fd >= 0:
        libc.syscall(LANDLOCK_RESTRICT_SELF, fd, 0)
        os.close(fd)


class FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def set_limits(program):
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for what, limit in ((resource.RLIMIT_AS, CHILD_MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0),
                        (resource.RLIMIT_NOFILE, 1), (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(what, (limit, limit))
    if program:
        p = FilterProgram(len(program) // 8, program)
        if libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(p), 0, 0) != 0:
            os._exit(3)


# ---- the language of the templates ----

class Environment(ImmutableSandboxedEnvironment):
    """What is unsafe is an error at once, not an empty string."""

    def unsafe_undefined(self, obj, attribute):
        raise SecurityError(f"the attribute {attribute!r} of {type(obj).__name__} is not allowed")


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; here it only prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class Refusal(TemplateError):
    """raise_exception() of a template: its own words to the client."""


def raise_exception(message):
    raise Refusal(str(message))


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)


def new_environment():
    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


class TooLong(Exception):
    pass


def render(template, variables):
    parts, size = [], 0
    for part in template.generate(variables):
        size += len(part)
        if size > OUTPUT_MAX:
            raise TooLong
        parts.append(part)
    return "".join(parts)


def render_continued(template, variables):
    """The text up to the end of the last message's content, which a tag marks. Where the template strips the
    space behind the tag, it would strip the content's own, too."""
    messages = variables["messages"]
    last = dict(messages[-1])
    if not isinstance(last.get("content"), str):
        raise Refusal("the last message has no text that could be continued")
    last["content"] += TAG + " "
    text = render(template, {**variables, "messages": messages[:-1] + [last]})
    if TAG not in text:
        raise Refusal("the chat template does not print the last message, so it cannot be continued")
    head, _, rest = text.rpartition(TAG)
    return head if rest.startswith(" ") else head.rstrip()


def respond(template, request):
    variables = json.loads(request)
    continued = variables.pop("continue_final_message")
    text = (render_continued if continued else render)(template, variables)
    data = text.encode("utf-8")
    if len(data) > OUTPUT_MAX:
        raise TooLong
    return frame(bytes([STATUS["text"]]) + data)


def guarded(act):
    """What act() gives, or the answer that tells why not."""
    try:
        return act()
    except Refusal as e:
        return answer("refused", str(e))
    except TooLong:
        return answer("output", "")
    except (MemoryError, RecursionError) as e:
        return answer("died", type(e).__name__)
    except TemplateSyntaxError as e:
        return answer("failed", f"line {e.lineno}: {e.message}")
    except Exception as e:
        return answer("failed", f"{type(e).__name__}: {e}")


def child(sock, program):
    """Renders for one template until the nursery hangs up."""
    set_limits(program)
    env, template = new_environment(), None

    def act():
        nonlocal template
        if template is None:
            template = env.from_string(body[4:4 + n].decode("utf-8"))
        return respond(template, body[4 + n:])

    while (body := read_frame(sock, REQUEST_MAX)) is not None:
        n = struct.unpack("<I", body[:4])[0]
        sock.sendall(guarded(act))
    os._exit(0)


# ---- the nursery ----

class Nursery:
    def __init__(self, client, program):
        self.client, self.program = client, program
        self.children = {}  # key -> (pid, socket), the one used last at the end

    def fork(self, key):
        while len(self.children) >= CHILDREN_MAX:
            self.drop(next(iter(self.children)))
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.dup2(theirs.fileno(), 0)
            os.closerange(1, 1 << 16)
            child(socket.socket(fileno=0), self.program)
        theirs.close()
        self.children[key] = (pid, ours)

    def drop(self, key):
        pid, sock = self.children.pop(key)
        sock.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def exchange(self, sock, body):
        """Sends the request, reads one answer; by the deadline, or it is another status."""
        deadline = time.monotonic() + TIME_S
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLOUT)
        sock.setblocking(False)
        out, got = memoryview(frame(body)), bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not (events := poll.poll(left * 1000)):
                return "time", None
            try:
                if events[0][1] & select.POLLOUT:
                    out = out[sock.send(out):]
                    if not out:
                        poll.modify(sock, select.POLLIN)
                if events[0][1] & ~select.POLLOUT:
                    part = sock.recv(1 << 18)
                    if not part:
                        return "died", None
                    got += part
            except OSError:
                return "died", None
            if len(got) >= 4:
                n = struct.unpack("<I", got[:4])[0]
                if n > OUTPUT_MAX + 1 or len(got) > n + 4:
                    return "output", None
                if len(got) == n + 4:
                    return "text", bytes(got)

    def wait_for_client(self):
        while self.children and not select.select([self.client], [], [], IDLE_S)[0]:
            for key in list(self.children):
                self.drop(key)

    def serve(self):
        while True:
            self.wait_for_client()
            body = read_frame(self.client, REQUEST_MAX)
            if body is None:
                return
            key = body[:32]
            if key in self.children:
                self.children[key] = self.children.pop(key)
            else:
                self.fork(key)
            status, got = self.exchange(self.children[key][1], body[32:])
            if got is None or got[4] == STATUS["died"]:  # out of memory once: not fit for more
                self.drop(key)
            if got is None:
                got = answer(status, "")
            self.client.sendall(got)


def warm_up():
    """Everything that Python would import or read later: nothing can be opened then."""
    env = new_environment()
    for text in ("{% for x in y %}{{ x | tojson }}{% endfor %}{{ strftime_now('%d %b %Y') }}", "{{ a.b.c }}", "{% if %}",
                 "{{ ''.__class__ }}", "{{ raise_exception('x') }}", "{% include 'x' %}",
                 "{% generation %}{{ 'x' | upper }}{% endgeneration %}{% set a = namespace(b=1) %}{{ a.b }}"):
        guarded(lambda: frame(render(env.from_string(text), {"y": [{"k": 1.5}]}).encode("utf-8")))


def main():
    sock = socket.socket(fileno=0)
    os.close(3)  # the script
    program = read_frame(sock, 1 << 16)
    if program is None:
        return
    warm_up()
    shut_files_and_network()
    gc.collect()
    gc.freeze()
    sock.sendall(b"R")
    Nursery(sock, program).serve()


main()
sys.exit(0)
