/* service/batch_input.h - the lines of a batch's input file.
 *
 * Lines are read one by one from a descriptor, from any recorded place, so a file of any size takes
 * the memory of one line. Line numbers count from 1 and count blank lines; blank lines themselves
 * are skipped. A byte order mark and a CR before the line's end are not part of a line. */
#ifndef SERVICE_BATCH_INPUT_H
#define SERVICE_BATCH_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* Nothing but spaces, tabs and CR. */
bool batch_line_blank(const char *text, size_t len);

struct batch_reader {
    int fd; /* borrowed */
    size_t max_line;
    char *bytes; /* owned */
    size_t cap, len, at;
    int64_t base; /* offset of bytes[0] in the file */
    int64_t line; /* number of the line at `at` */
    bool end;
};

/* One line as it stands; `text` is borrowed until the next call. */
struct batch_raw {
    const char *text;
    size_t len;
    int64_t line;
    bool too_large;                 /* over max_line bytes: text is empty */
    int64_t next_offset, next_line; /* where to go on behind it */
};

/* Reading begins at `offset`, which is the beginning of line `line`. -1: ERR_NOMEM. */
int batch_reader_begin(struct batch_reader *rd, int fd, size_t max_line, int64_t offset,
                       int64_t line, struct err *e);
/* 1 a line that is not blank, 0 the end of the file, -1 ERR_IO. */
int batch_reader_next(struct batch_reader *rd, struct batch_raw *raw, struct err *e);
void batch_reader_end(struct batch_reader *rd); /* a zeroed one is allowed */

/* A line judged by its own form; code NULL: it has one. */
struct batch_line {
    int64_t number;
    json_t *object;        /* owned; NULL: it is no JSON object */
    const json_t *id;      /* custom_id, a string of 1 to 512 characters, or NULL; borrowed */
    const json_t *body;    /* an object, or NULL; borrowed */
    const char *code;      /* static */
    const char *param;     /* static, or NULL */
    const char *message;   /* static */
    char parser_says[200]; /* what the JSON parser found, when code is invalid_json */
};

/* Judges in the documented order. `seen` (NULL: not looked at) is an object whose keys are the ids
 * of the lines before; this line's id is added. */
void batch_line_judge(struct batch_line *l, const struct batch_raw *raw, const char *endpoint,
                      json_t *seen);
void batch_line_release(struct batch_line *l);
#endif
