/* service/weaver/names.h - weaver:// paths as model names of /v1.
 *
 * A checkpoint path may stand for `model` in chats and completions: the request runs on those
 * weights beside the resident. It needs a key of the training API as bearer token. Any thread but
 * the engine's. */
#ifndef SERVICE_WEAVER_NAMES_H
#define SERVICE_WEAVER_NAMES_H

#include <stdbool.h>

#include "service/identity.h"

bool weaver_names(const char *model); /* it begins with weaver:// */
/* invalid_api_key unless the Authorization header carries a key. */
int weaver_permit(struct service *s, const char *authorization, struct refusal *r);
/* *out as identity_resolve fills it, with own_weights. model_not_found, invalid_api_key,
 * insufficient_memory. */
int weaver_pin(struct service *s, const struct identity_ask *ask, struct identity_pin *out,
               struct refusal *r);
/* Live sampler exports, as entries of GET /v1/models. */
void weaver_list_exports(struct service *s, identity_entry_fn *fn, void *arg);
#endif
