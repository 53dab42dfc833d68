/* Files by directory handle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"

struct place {
    char dir[64];
    int fd;
};

static int make_place(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    struct err e = {0};

    assert_non_null(p);
    strcpy(p->dir, "/tmp/cairn-fs-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    p->fd = fs_open_dir(p->dir, &e);
    assert_true(p->fd >= 0);
    assert_int_equal(mkdirat(p->fd, "in", 0755), 0);
    assert_int_equal(fs_create_file(p->fd, "in/file", "hello", 5, 0644, &e), 0);
    *state = p;
    return 0;
}

static int drop_place(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    int top = fs_open_dir("/tmp", &e);

    close(p->fd);
    assert_int_equal(fs_remove_tree(top, p->dir + 5, &e), 0);
    close(top);
    free(p);
    return 0;
}

static void refuses(const struct place *p, const char *path, enum fs_links links,
                    enum err_code code)
{
    struct err e = {0};

    assert_int_equal(fs_open_beneath(p->fd, path, O_RDONLY, 0, links, &e), -1);
    if (e.code != code)
        fail_msg("%s: %d, %s", path, e.code, e.msg);
}

static void a_path_that_leads_out_is_refused_in_every_form(void **state)
{
    struct place *p = *state;

    assert_int_equal(symlinkat("/etc", p->fd, "absolute"), 0);
    assert_int_equal(symlinkat("../..", p->fd, "in/up"), 0);
    assert_int_equal(symlinkat("loop", p->fd, "loop"), 0);
    refuses(p, "..", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "in/../..", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "/etc/passwd", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "absolute/passwd", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "in/up/etc", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "loop", FS_LINKS_INSIDE, ERR_ARG);
    refuses(p, "none", FS_LINKS_INSIDE, ERR_NOT_FOUND);
}

static void a_link_inside_is_followed_unless_links_are_refused(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    int fd;

    assert_int_equal(symlinkat("in", p->fd, "alias"), 0);
    fd = fs_open_beneath(p->fd, "alias/file", O_RDONLY, 0, FS_LINKS_INSIDE, &e);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    refuses(p, "alias/file", FS_LINKS_NONE, ERR_ARG);
}

static void only_a_regular_file_is_read_and_nothing_blocks(void **state)
{
    struct place *p = *state;
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(fs_read_file(p->fd, "in/file", FS_LINKS_NONE, 5, &out, &e), 0);
    assert_string_equal(buf_str(&out), "hello");
    assert_int_equal(fs_read_file(p->fd, "in/file", FS_LINKS_NONE, 4, &out, &e), -1);
    assert_int_equal(e.code, ERR_SPACE);
    assert_int_equal(mkfifoat(p->fd, "fifo", 0600), 0);
    assert_int_equal(fs_read_file(p->fd, "fifo", FS_LINKS_NONE, 10, &out, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_int_equal(fs_read_file(p->fd, "in", FS_LINKS_NONE, 10, &out, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_int_equal(symlinkat("in/file", p->fd, "link"), 0);
    assert_int_equal(fs_read_file(p->fd, "link", FS_LINKS_NONE, 10, &out, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_int_equal(fs_read_file(p->fd, "link", FS_LINKS_INSIDE, 10, &out, &e), 0);
    assert_int_equal(fs_read_file(p->fd, "none", FS_LINKS_NONE, 10, &out, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_string_equal(buf_str(&out), "hellohello");
    buf_release(&out);
}

static void an_existing_file_is_not_overwritten(void **state)
{
    struct place *p = *state;
    struct err e = {0};

    assert_int_equal(fs_create_file(p->fd, "in/file", "x", 1, 0644, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(e.sys, EEXIST);
}

static void a_locked_file_is_locked_until_its_handle_is_closed(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    int fd = fs_lock_file(p->fd, "lock", 0600, &e);

    assert_true(fd >= 0);
    assert_int_equal(fs_lock_file(p->fd, "lock", 0600, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(symlinkat("lock", p->fd, "link"), 0);
    assert_int_equal(fs_lock_file(p->fd, "link", 0600, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    fs_close(fd);
    fd = fs_lock_file(p->fd, "lock", 0600, &e);
    assert_true(fd >= 0);
    fs_close(fd);
}

static void a_read_past_the_end_is_an_error(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    char to[8];
    int fd = fs_open_regular(p->fd, "in/file", FS_LINKS_NONE, NULL, &e);

    assert_int_equal(fs_read_at(fd, to, 4, 1, &e), 0);
    assert_memory_equal(to, "ello", 4);
    assert_int_equal(fs_read_at(fd, to, 5, 1, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    close(fd);
}

static void a_tree_goes_but_not_what_its_links_point_at(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct stat st;

    assert_int_equal(mkdirat(p->fd, "tree", 0755), 0);
    assert_int_equal(mkdirat(p->fd, "tree/a", 0755), 0);
    assert_int_equal(symlinkat("../../in", p->fd, "tree/a/link"), 0);
    assert_int_equal(fs_create_file(p->fd, "tree/a/f", "x", 1, 0644, &e), 0);
    assert_int_equal(fs_remove_tree(p->fd, "tree", &e), 0);
    assert_int_equal(fs_remove_tree(p->fd, "tree", &e), 0); /* gone already */
    assert_int_equal(fstatat(p->fd, "tree", &st, 0), -1);
    assert_int_equal(fstatat(p->fd, "in/file", &st, 0), 0);
}

static void the_path_of_a_handle_is_its_real_one(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    char expected[96];
    char *path;
    int fd;

    assert_int_equal(symlinkat("in", p->fd, "alias"), 0);
    fd = fs_open_beneath(p->fd, "alias/file", O_RDONLY, 0, FS_LINKS_INSIDE, &e);
    path = fs_path_of(fd, &e);
    snprintf(expected, sizeof expected, "%s/in/file", p->dir);
    assert_string_equal(path, expected);
    free(path);
    close(fd);
}

static void direct_writes_of_the_stated_alignment_are_taken(void **state)
{
    struct place *p = *state;
    struct fs_direct facts;
    struct err e = {0};
    void *block = NULL;
    int fd = fs_open_beneath(p->fd, "direct", O_WRONLY | O_CREAT, 0600, FS_LINKS_NONE, &e);

    fs_direct_of(fd, &facts);
    assert_true(facts.mem_align >= 4096 && facts.offset_align >= 4096);
    if (facts.usable) {
        assert_int_equal(posix_memalign(&block, facts.mem_align, facts.offset_align), 0);
        memset(block, 7, facts.offset_align);
        assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT), 0);
        assert_int_equal(
            fs_write_at(fd, block, facts.offset_align, (int64_t)facts.offset_align, &e), 0);
        free(block);
    }
    close(fd);
}

int main(void)
{
#define FS_TEST(f) cmocka_unit_test_setup_teardown(f, make_place, drop_place)
    const struct CMUnitTest tests[] = {
        FS_TEST(a_path_that_leads_out_is_refused_in_every_form),
        FS_TEST(a_link_inside_is_followed_unless_links_are_refused),
        FS_TEST(only_a_regular_file_is_read_and_nothing_blocks),
        FS_TEST(an_existing_file_is_not_overwritten),
        FS_TEST(a_locked_file_is_locked_until_its_handle_is_closed),
        FS_TEST(a_read_past_the_end_is_an_error),
        FS_TEST(a_tree_goes_but_not_what_its_links_point_at),
        FS_TEST(the_path_of_a_handle_is_its_real_one),
        FS_TEST(direct_writes_of_the_stated_alignment_are_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
