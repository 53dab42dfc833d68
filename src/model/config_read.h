/* model/config_read.h - inside the room: typed reading of config.json, with a reason word for each
 * refusal. The functions return 0, or -1 with r->e and *r->reason set. */
#ifndef MODEL_CONFIG_READ_H
#define MODEL_CONFIG_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct model_config;

struct config_reader {
    const json_t *o;     /* config.json */
    const char **reason; /* "config", "unsupported", ... */
    struct err *e;
};

/* Puts "config.json: " before the message that is set. Always -1. */
int config_refuse(struct config_reader *r, const char *reason);

/* Absent or null: *out stays. */
int config_int(struct config_reader *r, const char *key, int64_t lo, int64_t hi, int *out);
int config_bool(struct config_reader *r, const char *key, bool *out);
int config_num(struct config_reader *r, const json_t *o, const char *key, bool required,
               double *out); /* positive and finite */
int config_need_int(struct config_reader *r, const char *key, int64_t hi, int *out); /* from 1 */
int config_need_true(struct config_reader *r, const char *key); /* absent or true */

/* config_family.c: what the family changes. Defaults are set before any key is read. */
void config_defaults(struct model_config *c);
int config_family(struct config_reader *r, struct model_config *c);
#endif
