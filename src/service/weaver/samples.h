/* service/weaver/samples.h - requests for samples and log-probabilities, on their way through the
 * engine.
 *
 * An operation waits in w->sample_queue until one of the slots is free and its model is not paused;
 * of those that may begin, the owner's who has the fewest slots is next. Then the engine generates;
 * events are gathered on the engine thread, and the finisher writes the answer. A pause in place
 * leaves a running one in the engine, with what it has computed but without a slot; retract puts it
 * back. That one, and one whose memory was needed meanwhile, begins again when the model goes on,
 * and since sampling is a pure function of (seed, sample, position) it ends with the same tokens.
 */
#ifndef SERVICE_WEAVER_SAMPLES_H
#define SERVICE_WEAVER_SAMPLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "engine/engine.h"
#include "generate/stop.h"
#include "service/weaver/operations.h"
#include "text/decode_stream.h"

struct w_sampler;

enum { SAMPLE_STOPS_MAX = 16, SAMPLE_COPIES_MAX = 256, SAMPLE_TOKENS_DEFAULT = 256 };

struct sample_params_w {
    float temperature, top_p, prompt_temperature;
    int top_k; /* 0: off */
    int max_tokens;
    uint64_t seed;
    int copies;
    bool prompt_logprobs, masks, old_logprobs, experts;
    int prompt_top; /* topk_prompt_logprobs */
    int head;       /* score centering: head_size, 0: none */
    struct stop_string stops[SAMPLE_STOPS_MAX];
    int n_stops;
    int32_t stop_ids[GEN_STOP_IDS_MAX]; /* the caller's, then the model's own */
    int n_stop_ids, n_own_stop_ids;
};

struct sample_sequence {
    int32_t *tokens;
    float *logprobs, *old;
    struct gen_top *head; /* [n][head] */
    int n, cap;
    struct buf masks; /* JSON, one list a token */
    struct decode_stream decode;
    struct stop_search stop;
    struct buf decoded, text;
    bool cut, ended;
    enum gen_reason reason;
};

enum sample_pause { NOT_PAUSED, PAUSE_ABORT, PAUSE_RETRACT, PAUSE_IN_PLACE };

struct sample_op {
    struct w_op op; /* first */
    struct weaver *w;
    struct w_sampler *sampler; /* counted */
    bool only_logprobs;
    struct arena arena; /* prompt, stop strings */
    int32_t *prompt;
    int n_prompt;
    struct sample_params_w p;
    enum sample_pause pause; /* w->lock: why it was cancelled */
    struct gen *submitted;   /* w->lock: to be cancelled through; NULL before and after */
    bool over;               /* w->lock: its last event has come */
    struct sample_op *next_running;
    /* gathered on the engine thread, read by the finisher after the last event */
    pthread_mutex_t lock; /* gen, against an event that comes before engine_submit returned */
    struct gen *gen;
    struct sample_sequence *sequences;
    float *prompt_logprobs;
    struct gen_top *prompt_tops; /* [n_prompt][prompt_top] */
    int *n_prompt_tops;
    int prompt_seen;
    bool failed; /* out of memory */
    enum gen_event_kind outcome;
};

/* sample_read.c: params and prompt of a body. */
int sample_read(struct sample_op *x, const json_t *body, struct refusal *r);
int sample_read_logprobs(struct sample_op *x, const json_t *body, struct refusal *r);
/* sample_gather.c */
int sample_gather_begin(struct sample_op *x); /* -1: out of memory */
void sample_gather_end(struct sample_op *x);
void sample_on_event(void *op, const struct gen_event *ev); /* [engine thread] */
/* sample_write.c: {"result": ...} of what was gathered. */
void sample_write(const struct sample_op *x, struct buf *b);

/* Lets waiting ones begin. Any thread but the engine's. */
void w_samples_pump(struct weaver *w);
/* Ends what waits, and cancels what runs: the server stops. */
void w_samples_end(struct weaver *w);
void w_pauses_free(struct weaver *w); /* models that stayed paused */
#endif
