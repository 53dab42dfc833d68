/* bench_store [--only limits|sha256] [--dir DIR] [--mb N] [--rounds N]
 *
 * A save and a verified read beside what limits them, in one run. Each round does in turn: SHA-256
 * of the bytes on one core, a copy with all cores, a direct write of the bytes, a whole save
 * (publish: write + hash + sync + rename), and a verified read of what was saved. "limits" leaves
 * out the last two, "sha256" all but the first. Prints medians as "name value" lines, speeds in
 * GB/s; a ratio is taken round by round. Defaults: /var/tmp, 2357 MB, 5 rounds (1 with --only). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/pool.h"
#include "base/sha256.h"
#include "store/publish.h"
#include "store/reader.h"

enum { ROUNDS_MAX = 32, BLOCK = 16 << 20 };

enum part { PART_SHA256, PART_LIMITS, PART_ALL };

struct bench {
    enum part part;
    const char *parent;
    int rounds;
    int dir_fd;
    unsigned char *bytes;
    size_t n;
    struct pool *pool;
};

struct round {
    double sha, copy, write, save, verify; /* GB/s */
};

static int die(const char *what, const struct err *e)
{
    fprintf(stderr, "bench_store: %s: %s\n", what, e->msg);
    exit(1);
}

static unsigned char *make_bytes(size_t n)
{
    uint64_t x = 88172645463325252ULL;
    unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, n, MADV_HUGEPAGE);
    for (size_t i = 0; i + 8 <= n; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
    return p;
}

static double gbps(const struct bench *b, int64_t start_ns)
{
    return (double)b->n / (double)(clock_mono_ns() - start_ns);
}

static double time_sha(const struct bench *b, char hex[SHA256_HEX])
{
    int64_t start = clock_mono_ns();

    sha256_hex_of(b->bytes, b->n, hex);
    return gbps(b, start);
}

/* One half onto the other: read n / 2, written n / 2. */
static double time_copy(struct bench *b)
{
    int64_t start = clock_mono_ns();

    pool_memcpy(b->pool, b->bytes + b->n / 2, b->bytes, b->n / 2);
    return gbps(b, start) / 2;
}

static double time_write(const struct bench *b)
{
    struct err e = {0};
    int64_t start = clock_mono_ns();
    double speed;
    int fd =
        openat(b->dir_fd, "direct.bin", O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);

    if (fd < 0) /* a file system without direct I/O: the limit is a buffered write with fsync */
        fd = openat(b->dir_fd, "direct.bin", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        die("open", &e);
    if (fallocate(fd, 0, 0, (off_t)b->n) < 0)
        fprintf(stderr, "bench_store: this file system reserves no space\n");
    for (size_t at = 0; at < b->n; at += BLOCK)
        if (fs_write_at(fd, b->bytes + at, b->n - at < BLOCK ? b->n - at : BLOCK, (int64_t)at, &e) <
            0)
            die("write", &e);
    if (fs_sync(fd, "direct.bin", &e) < 0)
        die("sync", &e);
    speed = gbps(b, start);
    close(fd);
    unlinkat(b->dir_fd, "direct.bin", 0);
    return speed;
}

static int read_bytes(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    const struct bench *b = arg;

    (void)e;
    memcpy(to, b->bytes + offset, n);
    return 0;
}

static int write_text(void *arg, const char sha[SHA256_HEX], struct buf *out, struct err *e)
{
    (void)arg, (void)e;
    buf_printf(out, "{\"weights_sha256\": \"%s\"}\n", sha);
    return 0;
}

static double time_save(struct bench *b, int round, char hex[SHA256_HEX])
{
    char step[32];
    struct publish_req req = {
        .root_fd = b->dir_fd,
        .run_dir = "bench",
        .final_name = step,
        .weights_name = "model.safetensors",
        .weights = {.bytes = (int64_t)b->n, .read = read_bytes, .arg = b},
        .manifest_name = "manifest.json",
        .manifest = write_text,
        .move_latest = true,
    };
    struct publish_result result;
    struct err e = {0};
    int64_t start = clock_mono_ns();

    snprintf(step, sizeof step, "step-%06d", round);
    if (publish(&req, &result, &e) < 0)
        die("publish", &e);
    memcpy(hex, result.weights_sha256, SHA256_HEX);
    return gbps(b, start);
}

static double time_verify(const struct bench *b, int round, char hex[SHA256_HEX])
{
    struct ckpt_reader *r;
    struct err e = {0};
    char step[64];
    int64_t start = clock_mono_ns();
    int fd;

    snprintf(step, sizeof step, "bench/step-%06d", round);
    fd = openat(b->dir_fd, step, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ckpt_reader_open(fd, "model.safetensors", &r, &e) != READER_OK ||
        ckpt_reader_hash(r, NULL, NULL, NULL, hex, &e) < 0)
        die("verify", &e);
    ckpt_reader_close(r);
    close(fd);
    return gbps(b, start);
}

static struct round one_round(struct bench *b, int round)
{
    char alone[SHA256_HEX], saved[SHA256_HEX], verified[SHA256_HEX];
    struct err e = {0};
    struct round r = {0};

    if (b->part != PART_SHA256) {
        r.copy = time_copy(b);
        r.write = time_write(b);
    }
    r.sha = time_sha(b, alone);
    if (b->part != PART_ALL)
        return r;
    r.save = time_save(b, round, saved);
    r.verify = time_verify(b, round, verified);
    if (strcmp(alone, saved) != 0 || strcmp(alone, verified) != 0)
        die("the three hashes differ", &e);
    if (fs_remove_tree(b->dir_fd, "bench", &e) < 0)
        die("remove", &e);
    return r;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_median(const char *name, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    printf("%s %.3f\n", name, n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2);
}

static void print_all(const struct bench *b, const struct round *r)
{
    static const char *const names[] = {"sha256_gbs", "copy_gbs",   "write_gbs",   "save_gbs",
                                        "verify_gbs", "save_ratio", "verify_ratio"};
    const int last = b->part == PART_SHA256 ? 1 : b->part == PART_LIMITS ? 3 : 7;
    double v[7][ROUNDS_MAX];

    for (int i = 0; i < b->rounds; i++) {
        v[0][i] = r[i].sha;
        v[1][i] = r[i].copy;
        v[2][i] = r[i].write;
        v[3][i] = r[i].save;
        v[4][i] = r[i].verify;
        v[5][i] = r[i].save / (r[i].sha < r[i].write ? r[i].sha : r[i].write);
        v[6][i] = r[i].verify / r[i].sha;
    }
    printf("bytes %zu\nrounds %d\n", b->n, b->rounds);
    for (int i = 0; i < last; i++)
        print_median(names[i], v[i], b->rounds);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_store [--only limits|sha256] [--dir DIR] [--mb N] [--rounds N]\n");
    return 2;
}

/* -1: not understood. */
static int read_options(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(name, "--dir") == 0 && *value)
            b->parent = value;
        else if (strcmp(name, "--mb") == 0)
            b->n = (size_t)strtoul(value, NULL, 10) << 20;
        else if (strcmp(name, "--rounds") == 0)
            b->rounds = (int)strtol(value, NULL, 10);
        else if (strcmp(name, "--only") == 0 && strcmp(value, "limits") == 0)
            b->part = PART_LIMITS;
        else if (strcmp(name, "--only") == 0 && strcmp(value, "sha256") == 0)
            b->part = PART_SHA256;
        else
            return -1;
    }
    if (b->rounds == 0)
        b->rounds = b->part == PART_ALL ? 5 : 1;
    return b->n > 0 && b->rounds > 0 && b->rounds <= ROUNDS_MAX ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct bench b = {.part = PART_ALL, .parent = "/var/tmp", .n = (size_t)2357 << 20};
    struct round results[ROUNDS_MAX];
    char path[512];
    struct err e = {0};

    if (read_options(&b, argc, argv) < 0)
        return usage();
    snprintf(path, sizeof path, "%s/cairn-bench-XXXXXX", b.parent);
    if (!(b.bytes = make_bytes(b.n)) || !(b.pool = pool_new(0, &e)))
        die("get memory", &e);
    if (!mkdtemp(path) || (b.dir_fd = fs_open_dir(path, &e)) < 0)
        die("make a directory", &e);
    for (int i = 0; i < b.rounds; i++)
        results[i] = one_round(&b, i);
    rmdir(path);
    print_all(&b, results);
    pool_free(b.pool);
    return 0;
}
