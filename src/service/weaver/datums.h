/* service/weaver/datums.h - what a forward or forward-backward pass is asked to compute, checked.
 *
 * Nothing is queued before every datum has passed: one bad datum refuses the whole call. Position i
 * predicts target_tokens[i]; every vector of loss_fn_inputs has one entry a token, a scalar counts
 * for all. Fields and codes: docs/api/weaver.md, "Data". */
#ifndef SERVICE_WEAVER_DATUMS_H
#define SERVICE_WEAVER_DATUMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "train/trainer.h"

struct refusal;
struct w_pack;

struct w_limits {
    int vocab;
    int max_tokens; /* of one datum */
};

struct w_batch {
    struct arena arena; /* everything below lies in it */
    struct train_datum *data;
    int n;
    const char **ids; /* [n] datum_id; NULL: none given. An entry may be NULL */
    int64_t rows;     /* tokens of all data */
    struct loss_config loss;
    float temperature;
};

/* input: forward_input or forward_backward_input. -1 with *r; release it in both cases. */
int w_batch_read(struct w_batch *b, const json_t *input, struct w_pack *pack,
                 const struct w_limits *limits, bool backward, struct refusal *r);
void w_batch_release(struct w_batch *b);

/* Tokens of {"chunks": [...]} in [0, vocab); *n of them in the arena. */
int w_tokens_read(const json_t *model_input, struct w_pack *pack, struct arena *a,
                  const struct w_limits *limits, int32_t **out, int *n, struct refusal *r);
#endif
