"""What a disk may hold after a power cut, from the calls that a program made (docs/formats/store.md, "After a power cut").

A file's writes and sizes are pending until fsync of that file, a directory's entries until fsync of that directory. A cut
keeps everything that was synced and any subset of what was pending; a write of more than a sector may be kept in part. A
rename inside one directory is kept whole or not at all. Nothing else is promised: no order between files, none between a
file and its name, none between two pending entries.
"""
import os
import stat
import struct

import gate

SECTOR = 4096
ALL = -1  # every bit: everything pending is kept


class File:
    def __init__(self, content=b""):
        self.durable, self.pending, self.asked = content, [], {}

    def choices(self):
        return len(self.pending)

    def after(self, bits):
        """The content when the pending changes of `bits` are kept; the same object for the same question."""
        key = (bits, len(self.pending))
        if key not in self.asked:
            self.asked[key] = self._after(bits)
        return self.asked[key]

    def _after(self, bits):
        content = bytearray(self.durable)
        for i, (what, *args) in enumerate(self.pending):
            if not bits >> i & 1:
                continue
            if what == "size":
                content = content[:args[0]].ljust(args[0], b"\0")
            else:
                at, data = args
                content[at:at + len(data)] = data if at <= len(content) else bytes(at - len(content)) + data
        return bytes(content)

    def sync(self):
        self.durable, self.pending, self.asked = self.after(ALL), [], {}


class Link:
    def __init__(self, target):
        self.target = target

    def choices(self):
        return 0


class Directory:
    def __init__(self):
        self.durable, self.pending = {}, []

    def choices(self):
        return len(self.pending)

    def after(self, bits):
        entries = dict(self.durable)
        for i, (gone, name, node) in enumerate(self.pending):
            if not bits >> i & 1:
                continue
            if gone:
                entries.pop(gone, None)
            if name:
                entries[name] = node
        return entries

    def now(self):
        return self.after(ALL)

    def sync(self):
        self.durable, self.pending = self.now(), []


class Disk:
    """`root` is a real directory whose present content is durable. Calls are fed in their order."""

    def __init__(self, root):
        self.root, self.tree = root, read_tree(root)

    def _node(self, path):
        node = self.tree
        for part in os.path.relpath(path, self.root).split("/"):
            if part != ".":
                node = node.now()[part]
        return node

    def _place(self, path):
        return self._node(os.path.dirname(path)), os.path.basename(path)

    def feed(self, step):
        getattr(self, step[0])(*step[1:])

    def create(self, path):
        directory, name = self._place(path)
        if name not in directory.now():
            directory.pending.append((None, name, File()))

    def mkdir(self, path):
        directory, name = self._place(path)
        if name not in directory.now():  # else the call failed, and nothing happened
            directory.pending.append((None, name, Directory()))

    def symlink(self, target, path):
        directory, name = self._place(path)
        directory.pending.append((None, name, Link(target)))

    def rename(self, old, new):
        directory, name = self._place(old)
        other, to = self._place(new)
        assert directory is other, "a rename between directories is not in the model"
        directory.pending.append((name, to, directory.now()[name]))

    def remove(self, path):
        directory, name = self._place(path)
        directory.pending.append((name, None, None))

    def write(self, path, at, data):
        """Two pieces, so that either may be lost."""
        half = len(data) // 2 // SECTOR * SECTOR
        for start, piece in ((0, data[:half]), (half, data[half:])):
            if piece:
                self._node(path).pending.append(("data", at + start, piece))

    def size(self, path, size):
        self._node(path).pending.append(("size", size))

    def reserve(self, path, size):
        node = self._node(path)
        node.pending.append(("size", max(size, len(node.after(ALL)))))

    def sync(self, path):
        self._node(path).sync()

    # -- what a cut may leave

    def nodes(self):
        """All nodes that any cut could show, each once."""
        found, todo = [], [self.tree]
        while todo:
            node = todo.pop()
            if any(node is f for f in found):
                continue
            found.append(node)
            if isinstance(node, Directory):
                todo += node.durable.values()
                todo += [n for _, _, n in node.pending if n]
        return found

    def cuts(self, rng, random_cuts):
        """Choices as {id of a node: kept bits}: nothing and everything; each node's subsets alone, with the others all lost and
        all kept; and some at random over all nodes."""
        open_nodes = [n for n in self.nodes() if n.choices()]
        none = {id(n): 0 for n in open_nodes}
        full = {id(n): (1 << n.choices()) - 1 for n in open_nodes}
        yield none
        yield full
        for node in open_nodes:
            count = node.choices()
            subsets = range(1 << count) if count <= 5 else [rng.getrandbits(count) for _ in range(32)]
            for bits in subsets:
                yield {**none, id(node): bits}
                yield {**full, id(node): bits}
        for _ in range(random_cuts if open_nodes else 0):
            yield {id(n): rng.getrandbits(n.choices()) for n in open_nodes}

    def after(self, cut):
        """{path: bytes, ("link", target) or None for a directory} that this cut leaves."""
        tree = {}

        def walk(node, path):
            bits = cut.get(id(node), 0)
            if isinstance(node, Link):
                tree[path] = ("link", node.target)
            elif isinstance(node, File):
                tree[path] = node.after(bits)
            else:
                if path:
                    tree[path] = None
                for name, child in node.after(bits).items():
                    walk(child, f"{path}/{name}" if path else name)

        walk(self.tree, "")
        return tree


def read_tree(path):
    directory = Directory()
    for name in os.listdir(path):
        at = os.path.join(path, name)
        mode = os.lstat(at).st_mode
        if stat.S_ISLNK(mode):
            directory.durable[name] = Link(os.readlink(at))
        elif stat.S_ISDIR(mode):
            directory.durable[name] = read_tree(at)
        else:
            with open(at, "rb") as f:
                directory.durable[name] = File(f.read())
    return directory


def write_tree(tree, path):
    """Makes what a cut left a real directory."""
    os.makedirs(path)
    for name in sorted(tree):
        at, what = os.path.join(path, name), tree[name]
        if what is None:
            os.mkdir(at)
        elif isinstance(what, tuple):
            os.symlink(what[1], at)
        else:
            with open(at, "wb") as f:
                f.write(what)


def recorder(root, steps):
    """A judge that passes every call and appends to `steps` what it does to the disk below root."""

    def judge(call):
        if not (call.path == root or call.path.startswith(root + "/")):
            return gate.PASS
        number = lambda i: struct.unpack("<q", struct.pack("<Q", call.args[i]))[0]  # noqa: E731
        if call.creates:
            steps.append(("create", call.path))
        elif call.name in gate.SYNCS:
            steps.append(("sync", call.path))
        elif call.name == "pwrite64":
            steps.append(("write", call.path, number(3), call.memory(call.args[1], number(2))))
        elif call.name == "ftruncate":
            steps.append(("size", call.path, number(1)))
        elif call.name == "fallocate":
            steps.append(("reserve", call.path, number(2) + number(3)))
        elif call.name.startswith("rename"):
            steps.append(("rename", call.path, call.to))
        elif call.name.startswith("mkdir"):
            steps.append(("mkdir", call.path))
        elif call.name.startswith("symlink"):
            steps.append(("symlink", call.text, call.path))
        elif call.name in ("unlinkat", "unlink", "rmdir"):
            steps.append(("remove", call.path))
        else:
            assert not call.changes, f"the model of the disk does not know {call}"
        return gate.PASS

    return judge
