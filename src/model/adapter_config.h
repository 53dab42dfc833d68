/* model/adapter_config.h - inside the room: what adapter_config.json says of one module. */
#ifndef MODEL_ADAPTER_CONFIG_H
#define MODEL_ADAPTER_CONFIG_H

#include <jansson.h>

struct adapter_problem;
struct err;

/* What adapter_config_read does after it has read the file. 0, or -1 with p->field and *e. */
int adapter_config_check(const json_t *config, struct adapter_problem *p, struct err *e);

/* Rank and alpha / rank (or alpha / sqrt(rank)) of a module path, after the patterns. `config` has
 * passed adapter_config_read. */
int adapter_rank(const json_t *config, const char *module);
double adapter_ratio(const json_t *config, const char *module);
#endif
