/* service/weaver/export.h - the files of an export. */
#ifndef SERVICE_WEAVER_EXPORT_H
#define SERVICE_WEAVER_EXPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct refusal;
struct w_ckpt;
struct weaver;

/* Writes .artifacts/<id>/ in one step; the checkpoint is pinned. The manifest {"files": [{name,
 * size, sha256}]} (owned) and the bytes of all files; NULL with *r. */
json_t *export_write(struct weaver *w, const struct w_ckpt *c, bool merge, const char *id,
                     int64_t *bytes, struct refusal *r);
int export_remove(struct weaver *w, const char *id, struct err *e);
/* A file of an export for reading; -1, with ERR_NOT_FOUND: it is not there. */
int export_open(struct weaver *w, const char *id, const char *name, int64_t *bytes, struct err *e);
#endif
