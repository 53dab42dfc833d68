#include "text/chat_filter.h"

#include <errno.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"

static int add_rules(scmp_filter_ctx ctx)
{
    static const int allowed[] = {
        SCMP_SYS(read),         SCMP_SYS(write),          SCMP_SYS(sendto),
        SCMP_SYS(recvfrom),     SCMP_SYS(poll),           SCMP_SYS(ppoll),
        SCMP_SYS(munmap),       SCMP_SYS(mremap),         SCMP_SYS(brk),
        SCMP_SYS(madvise),      SCMP_SYS(futex),          SCMP_SYS(rt_sigreturn),
        SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(sigaltstack),
        SCMP_SYS(exit),         SCMP_SYS(exit_group),     SCMP_SYS(clock_gettime),
        SCMP_SYS(gettimeofday), SCMP_SYS(getrandom),
    };
    const struct scmp_arg_cmp no_exec = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof allowed / sizeof *allowed; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, allowed[i], 0);
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, no_exec);
    return rc == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, no_exec) : rc;
}

/* libseccomp writes its program to a descriptor. */
static int export_program(scmp_filter_ctx ctx, struct buf *out, struct err *e)
{
    int fd = memfd_create("filter", MFD_CLOEXEC), rc = -1;
    char bytes[8192];
    ssize_t n;

    if (fd < 0)
        return err_io(e, "make room for the system call filter");
    errno = 0;
    if (seccomp_export_bpf(ctx, fd) < 0 || (n = pread(fd, bytes, sizeof bytes, 0)) <= 0) {
        err_io(e, "compile the system call filter");
    } else {
        buf_add(out, bytes, (size_t)n);
        rc = out->failed ? err_nomem(e) : 0;
    }
    close(fd);
    return rc;
}

int chat_filter_program(struct buf *out, struct err *e)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc;

    if (!ctx)
        return err_nomem(e);
    rc = add_rules(ctx);
    if (rc < 0)
        rc = err_set(e, ERR_IO, "libseccomp refuses the filter of the template worker (error %d)",
                     -rc);
    else
        rc = export_program(ctx, out, e);
    seccomp_release(ctx);
    return rc;
}
