/* File systems that refuse direct I/O, say so or not, or read and write in small pieces.
 *
 * This program defines statx, pwrite and pread itself; the linker takes these for the archive's
 * calls. */
#include "store/scratch.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "store/publish.h"
#include "store/reader.h"

/* How the file system behaves; each test sets it. */
static struct behaviour {
    bool tells_none;     /* statx: no direct I/O here */
    bool refuses_direct; /* promised, but every direct read and write fails with EINVAL */
    bool pieces; /* a write takes at most 1 MiB, a read gives at most 1 MiB, and signals come
                    between */
    int direct, buffered; /* calls that were done */
} fs;

static bool is_direct(int fd)
{
    return fcntl(fd, F_GETFL) & O_DIRECT;
}

static bool interrupted(void)
{
    static int turn;

    errno = EINTR;
    return fs.pieces && turn++ % 3 == 0;
}

static size_t piece(size_t n)
{
    return fs.pieces && n > 1 << 20 ? 1 << 20 : n;
}

static bool refused(int fd)
{
    errno = EINVAL;
    if (is_direct(fd) && fs.refuses_direct)
        return true;
    __atomic_fetch_add(is_direct(fd) ? &fs.direct : &fs.buffered, 1, __ATOMIC_RELAXED);
    return false;
}

int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict out)
{
    int rc = (int)syscall(SYS_statx, dir, path, flags, mask, out);

#ifdef STATX_DIOALIGN
    if (rc == 0 && fs.tells_none) {
        out->stx_mask |= STATX_DIOALIGN;
        out->stx_dio_mem_align = out->stx_dio_offset_align = 0;
    }
#endif
    return rc;
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t offset)
{
    if (interrupted() || refused(fd))
        return -1;
    return syscall(SYS_pwrite64, fd, from, piece(n), offset);
}

ssize_t pread(int fd, void *to, size_t n, off_t offset)
{
    if (interrupted() || refused(fd))
        return -1;
    return syscall(SYS_pread64, fd, to, piece(n), offset);
}

enum { BYTES = 3 * PUBLISH_BLOCK + 1000 };

static int read_pattern(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    unsigned char *at = to;

    (void)arg, (void)e;
    for (size_t i = 0; i < n; i++)
        at[i] = (unsigned char)((offset + i) * 31 >> 3);
    return 0;
}

static void save(const struct scratch *s, struct publish_result *out)
{
    struct publish_req req = {
        .root_fd = s->fd,
        .run_dir = "r1",
        .final_name = "step-000001",
        .weights_name = "model.safetensors",
        .weights = {.bytes = BYTES, .read = read_pattern},
    };
    struct err e = {0};

    if (publish(&req, out, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Reads the file back with the same behaviour; its hash must be that of the save. */
static void verify(const struct scratch *s, const struct publish_result *saved)
{
    int dir = openat(s->fd, "r1/step-000001", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(dir, "model.safetensors", O_RDONLY | O_CLOEXEC);
    struct ckpt_reader *r;
    struct err e = {0};
    char sha[SHA256_HEX];

    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    fs.direct = fs.buffered = 0;
    assert_int_equal(ckpt_reader_open(dir, "model.safetensors", &r, &e), READER_OK);
    assert_int_equal(ckpt_reader_facts(r)->size, BYTES);
    if (ckpt_reader_hash(r, NULL, NULL, NULL, sha, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(sha, saved->weights_sha256);
    ckpt_reader_close(r);
    close(dir);
}

static void buffered_io_serves_where_the_file_system_has_no_direct_io(void **state)
{
    struct publish_result out;

    fs = (struct behaviour){.tells_none = true};
    save(*state, &out);
    assert_int_equal(fs.direct, 0);
    verify(*state, &out);
    assert_int_equal(fs.direct, 0);
    assert_true(fs.buffered > 0);
}

static void buffered_io_takes_over_where_direct_io_was_promised_and_is_refused(void **state)
{
    struct publish_result out;

    fs = (struct behaviour){.refuses_direct = true};
    save(*state, &out);
    assert_int_equal(fs.direct, 0);
    assert_true(fs.buffered > 0);
    verify(*state, &out);
    assert_int_equal(fs.direct, 0);
    assert_true(fs.buffered > 0);
}

static void short_and_interrupted_calls_are_continued(void **state)
{
    struct publish_result out;

    fs = (struct behaviour){.pieces = true};
    save(*state, &out);
    verify(*state, &out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(buffered_io_serves_where_the_file_system_has_no_direct_io),
        SCRATCH_TEST(buffered_io_takes_over_where_direct_io_was_promised_and_is_refused),
        SCRATCH_TEST(short_and_interrupted_calls_are_continued),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
