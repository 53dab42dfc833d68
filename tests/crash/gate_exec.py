"""gate_exec.py SOCKET PROGRAM...: becomes PROGRAM behind a gate (gate.py) whose other end goes through SOCKET."""
import os
import socket
import sys

import gate

link = socket.socket(fileno=int(sys.argv[1]))
listener = gate.install()
socket.send_fds(link, [b"g"], [listener])
link.detach()
os.execv(sys.argv[2], sys.argv[2:])
