"""Tokenising, and the kernels forced to AVX2."""
import statistics
import subprocess

from .peers import smollm
from .table import Table, Verdict, bench
from .tools import ROOT, build, figures, program, quiet


@bench("tokenize", "10 MB of mixed prose, code and Unicode, no line twice, on one core: MB/s")
def tokenize(pairs):
    exe = program("bench_tokenize")
    t = Table("MB/s")
    for _ in range(pairs):
        quiet()
        t.add("cairn, SmolLM2 tokenizer", figures(exe, smollm())["tokenize_mbs"])
    t.show()
    return [Verdict("tokenize-mbs", t.median("cairn, SmolLM2 tokenizer"), 10)]


@bench("avx2", "the kernels forced to AVX2, bits equal: share of the 256-bit multiply-add peak")
def avx2(pairs):
    exe = program("bench_kernels")
    build("build/tests/kernels/test_linear")
    if subprocess.run(["build/tests/kernels/test_linear"], cwd=ROOT, capture_output=True).returncode:
        raise SystemExit("the AVX2 kernels do not give the reference's bits")
    print("every variant of this CPU gives the reference's bits (tests/unit/kernels/test_linear.c)")
    t, share = Table("share of the 256-bit peak"), []
    for _ in range(pairs):
        quiet()
        found = {k: v for k, v in figures(exe, "--avx2").items() if k.startswith("avx2.linear.")}
        for shape, value in found.items():
            t.add(shape, value)
        share.append(statistics.median(found.values()))
    t.show()
    return [Verdict("avx2", statistics.median(share), 0.65)]
