/* service/embed.h - vectors of texts: POST /v1/embeddings without HTTP.
 *
 * A job runs on the caller's thread: the name is resolved (service/identity.h), every input is
 * encoded and must fit the model's context, the engine computes one vector an input
 * (engine/pooling.h), and the vectors are cut and normalised. A vector is made of the output of the
 * final norm at all positions of the input, special tokens included; an applied adapter takes part.
 *
 * Everything in a job is borrowed until embed_run returns. Any thread but the engine's. */
#ifndef SERVICE_EMBED_H
#define SERVICE_EMBED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "service/chat.h"

struct refusal;
struct served;
struct service;

struct embed_job {
    struct identity_ask ask; /* the model, and who asks */
    chat_watch_fn *watch;    /* NULL: nobody leaves */
    void *watch_arg;
    bool background; /* gives way to others */

    const struct chat_prompt *inputs;
    int n_inputs;
    bool is_list; /* refusals name input[i], not input */
    enum gen_pooling pooling;
    bool normalize;
    int dimensions; /* the first so many values; 0: all */
};

struct embedded {
    struct served *served; /* counted: what answered */
    float *vectors;        /* owned, [n_inputs, width] */
    int width;
    int prompt_tokens;
};

/* 0, or -1 with *r. embed_release in both cases (*out zeroed before). */
int embed_run(struct service *s, const struct embed_job *job, struct embedded *out,
              struct refusal *r);
void embed_release(struct embedded *out);
#endif
