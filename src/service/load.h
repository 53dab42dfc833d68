/* service/load.h - parts of a weights load that other use cases need. */
#ifndef SERVICE_LOAD_H
#define SERVICE_LOAD_H

struct refusal;
struct service;

/* GPU_NOT_FOUND, unless gpu is NULL, "auto" or "cpu". */
int load_gpu_refuse(const char *gpu, struct refusal *r);

/* AUTO_LOAD_MODEL with a checkpoint's name: the load of weights_load, without a caller. */
int load_at_start(struct service *s, const char *name, struct refusal *r);
#endif
