#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Messages hold text from files and requests, and are cut anywhere: control bytes would break
 * one-line logs, and what is not UTF-8 no JSON can hold. */
static void one_line(char *s)
{
    utf8_repair(s);
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    e->code = code;
    e->sys = 0;
    e->detail[0] = 0;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    one_line(e->msg);
    return -1;
}

static enum err_code code_of_errno(int sys)
{
    switch (sys) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ERR_SPACE;
    case ENOMEM:
        return ERR_NOMEM;
    case ENOENT:
        return ERR_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
        return ERR_CONFLICT;
    default:
        return ERR_IO;
    }
}

int err_io(struct err *e, const char *fmt, ...)
{
    int sys = errno;
    size_t n;
    va_list ap;

    e->code = code_of_errno(sys);
    e->sys = sys;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    snprintf(e->detail, sizeof e->detail, "%s", strerror(sys));
    n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", e->detail);
    one_line(e->msg);
    return -1;
}

int err_nomem(struct err *e)
{
    return err_set(e, ERR_NOMEM, "out of memory");
}

int err_detail(struct err *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->detail, sizeof e->detail, fmt, ap);
    va_end(ap);
    one_line(e->detail);
    return -1;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    char old[sizeof e->msg];
    va_list ap;
    size_t n;

    memcpy(old, e->msg, sizeof old);
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    one_line(e->msg);
    return -1;
}
