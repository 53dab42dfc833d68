#!/usr/bin/python3
"""coverage.py BUILD... [--missing PREFIX...]: what the programs of a COV=1 build have reached, by gcov.

A line a folder of src/: lines and branches, reached and all. With --missing, for sources whose path begins with PREFIX:
each stretch of lines that nothing reached, and each line with a branch that was never taken ("12:1/2" is one of two).
A source that no program reached counts as 0. Run from the root of the tree.
"""
import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

BATCH = 40  # object files a call of gcov


def notes(builds):
    """Every .gcno file of the builds: a source's lines, reached or not."""
    found = [p for b in builds for p in sorted(Path(b).rglob("*.gcno")) if "obj" in p.parts]
    if not found:
        sys.exit(f"coverage.py: no coverage notes below {' '.join(builds)}; build with COV=1")
    return found


def reports(paths):
    """What gcov says of each object file, as JSON."""
    for i in range(0, len(paths), BATCH):
        some = [str(p) for p in paths[i:i + BATCH]]
        out = subprocess.run(["gcov", "-b", "--json-format", "--stdout", *some], check=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True).stdout
        yield from (json.loads(line) for line in out.splitlines() if line.startswith("{"))


def gather(builds):
    """{source: ({line: count}, {(line, branch): count})}, over all builds."""
    sources = defaultdict(lambda: (defaultdict(int), defaultdict(int)))
    for report in reports(notes(builds)):
        for file in report["files"]:
            if not file["file"].startswith("src/") or not Path(file["file"]).exists():
                continue
            lines, branches = sources[file["file"]]
            for line in file["lines"]:
                lines[line["line_number"]] += line["count"]
                for n, branch in enumerate(line["branches"]):
                    branches[line["line_number"], n] += branch["count"]
    return sources


def share(counts):
    reached = sum(1 for c in counts if c > 0)
    return f"{reached:6d} of {len(counts):6d} {100 * reached / max(1, len(counts)):5.1f} %"


def folders(sources):
    lines, branches = defaultdict(list), defaultdict(list)
    for name, (ls, bs) in sources.items():
        for folder in ("/".join(name.split("/")[:2]) if name.count("/") > 1 else "src", "all of src"):
            lines[folder] += ls.values()
            branches[folder] += bs.values()
    print(f"{'folder':15s}{'lines':>24s}{'branches':>28s}")
    for folder in sorted(lines, key=lambda f: (f == "all of src", f)):
        print(f"{folder:15s}{share(lines[folder]):>24s}{share(branches[folder]):>28s}")


def stretches(numbers, known):
    """Runs of `numbers` with no other line of `known` between them, as "3-7"."""
    out, missing = [], set(numbers)
    for n in sorted(known):
        if n not in missing:
            out.append(None)
        elif out and out[-1]:
            out[-1] = (out[-1][0], n)
        else:
            out.append((n, n))
    return [f"{a}-{b}" if a != b else str(a) for a, b in filter(None, out)]


def missing(sources, prefixes):
    for name in sorted(sources):
        if not any(name.startswith(p) for p in prefixes):
            continue
        lines, branches = sources[name]
        never = stretches([n for n, c in lines.items() if not c], lines)
        half = []
        for n in sorted({line for line, _ in branches if lines.get(line)}):
            taken = [c > 0 for (line, _), c in branches.items() if line == n]
            if not all(taken):
                half.append(f"{n}:{sum(taken)}/{len(taken)}")
        if never or half:
            print(f"{name}\n    lines    {' '.join(never)}\n    branches {' '.join(half)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="+")
    parser.add_argument("--missing", nargs="+", default=[], metavar="PREFIX")
    args = parser.parse_args()
    sources = gather(args.build)
    missing(sources, args.missing)
    folders(sources)


if __name__ == "__main__":
    main()
