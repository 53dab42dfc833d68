/* model/adapter_config.h - inside the room: what adapter_config.json says of one module. */
#ifndef MODEL_ADAPTER_CONFIG_H
#define MODEL_ADAPTER_CONFIG_H

#include <jansson.h>

/* Rank and alpha / rank (or alpha / sqrt(rank)) of a module path, after the patterns. `config` has
 * passed adapter_config_read. */
int adapter_rank(const json_t *config, const char *module);
double adapter_ratio(const json_t *config, const char *module);
#endif
