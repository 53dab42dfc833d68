/* service/load.h - parts of a weights load that other use cases need. */
#ifndef SERVICE_LOAD_H
#define SERVICE_LOAD_H

#include <jansson.h>

struct refusal;
struct service;

/* GPU_NOT_FOUND, unless gpu is NULL, null, "auto" or "cpu". Other servers take a number too. */
int load_gpu_refuse(const json_t *gpu, struct refusal *r);

/* AUTO_LOAD_MODEL with a checkpoint's name: the load of weights_load, without a caller. */
int load_at_start(struct service *s, const char *name, struct refusal *r);
#endif
