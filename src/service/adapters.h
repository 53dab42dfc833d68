/* service/adapters.h - LoRA adapters of ADAPTER_DIR beside the resident (docs/api/adapters.md).
 *
 * One at a time; the weights are never changed, so a save never holds one. Apply and remove let
 * running requests end (the barrier), then change what the next ones run with. A load removes the
 * adapter before its first write; an unload and a full reload drop it; commits leave it. Any thread
 * but the engine's; on success *data is owned. Each apply and remove writes one audit line. */
#ifndef SERVICE_ADAPTERS_H
#define SERVICE_ADAPTERS_H

#include "service/refusal.h"
#include "service/weights.h"

weights_route_fn adapters_apply, adapters_remove;
int adapters_list(struct service *s, json_t **data, struct refusal *r);

/* The documented orders, for tests. */
extern const struct refusal_rule adapter_apply_rules[], adapter_remove_rules[],
    adapter_barrier_rules[];
#endif
