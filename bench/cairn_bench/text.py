"""Tokenising, and the kernels forced to AVX2."""
from .peers import smollm
from .table import Table, Verdict, bench
from .tools import figures, program, quiet


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
    t = Table("GFLOP/s")
    for _ in range(pairs):
        quiet()
        found = figures(exe, "--avx2")
        if found.get("avx2_bits_equal") != 1:
            raise SystemExit("the AVX2 kernels do not give the reference's bits")
        t.add("linear, SmolLM2 shapes", found["avx2_gflops"])
        t.add("256-bit multiply-add peak", found["fma256_gflops"])
    t.show()
    return [Verdict("avx2", t.ratio("linear, SmolLM2 shapes", "256-bit multiply-add peak"), 0.65)]
