/* base/err.h - the one error type of the libraries below service/.
 *
 * What can fail takes a last parameter `struct err *e` and returns int (0 or -1) or a pointer (owned
 * or NULL). On success *e is untouched; on failure it is filled. Nothing allocates. `e` is never NULL. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

enum err_code {
    ERR_ARG = 1,   /* the caller's value is wrong: mend the request */
    ERR_NOT_FOUND, /* no such id, model or file */
    ERR_CONFLICT,  /* taken, in use or out of order: look, then try again */
    ERR_FORMAT,    /* bytes are not what their format says */
    ERR_SPACE,     /* disk, quota or memory budget is full */
    ERR_NOMEM,     /* an allocation failed */
    ERR_IO,        /* the system refused; detail holds the text of errno */
    ERR_CANCELLED, /* the caller asked to stop */
};

struct err {
    enum err_code code; /* what a program acts on: HTTP status, exit status, retry or not */
    int sys;            /* errno behind ERR_IO and ERR_SPACE, else 0 */
    char msg[320];      /* what a person reads: one sentence, no newline, no secret */
    char detail[160];   /* the fact behind it: path, byte offset, tensor name, errno text */
};

#define ERR_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* All return -1, so `return err_set(...)` is one step. err_io takes code (ERR_SPACE for ENOSPC, EDQUOT
 * and EFBIG, ERR_NOMEM for ENOMEM, ERR_NOT_FOUND for ENOENT, else ERR_IO) and detail from errno. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...) ERR_PRINTF(3, 4);
int err_io(struct err *e, const char *fmt, ...) ERR_PRINTF(2, 3);
int err_nomem(struct err *e);
int err_detail(struct err *e, const char *fmt, ...) ERR_PRINTF(2, 3); /* sets detail only */
int err_wrap(struct err *e, const char *fmt, ...) ERR_PRINTF(2, 3);   /* "step: " before msg */
#endif
