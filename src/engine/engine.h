/* engine/engine.h - the one thread that owns weights, batches and caches.
 *
 * Every change is a message handled between two steps. engine_call runs a function there and waits
 * for it; inside that function (and inside on_event and tick) the calls marked [engine] are
 * allowed, and no other thread may make them. Generation requests are submitted from any thread and
 * report by events from the engine thread; a handler must not block.
 *
 * Admission: a request waits until a slot is free and the gate is open, then pins the resident
 * image and the served record of that moment (its weight epoch) until it ends. If the load counter
 * changed since the request was resolved (spec->load_counter), it ends with GEN_RESOLVE_AGAIN
 * before it starts. A request that brings its own image (spec->image) only waits for a slot. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct adapter;
struct engine;
struct err;
struct grammar_bound;
struct image;
struct image_bank;
struct kernels;
struct pool;
struct served;

enum { SLOT_TIMES_DEFAULT = 50, SLOT_TIMES_MAX = 1000 };

/* A step that took far longer than its kind does of late, and what the process saw meanwhile. */
struct engine_slow_step {
    int decode_rows, prefill_rows;
    double ms, expected_ms;
    long page_faults,
        switches; /* memory touched for the first time; threads that lost their core */
};
typedef void engine_slow_step_fn(void *arg, const struct engine_slow_step *s);

struct engine_config {
    int n_threads;                 /* <= 0: all CPUs of this process */
    const struct kernels *kernels; /* borrowed, static */
    int max_running;               /* requests that hold a slot */
    int max_waiting; /* requests waiting or held; beyond: ERR_SPACE from engine_submit */
    size_t kv_bytes; /* 0: a quarter of the memory that is free after the first load */
    int max_images;  /* images of the resident alive at once (default 3) */
    int slot_times;  /* the median time of a slot is that of the last so many (default 50) */
    int64_t hold_timeout_ms; /* longest wait of a held request */
    int64_t stand_back_ms;   /* longest wait for answers on earlier weights to end; 0: none */
    int train_share;         /* percent of the time that training may take while requests run */
    int background_share;    /* percent of a step of many rows that a lent core may be away */
    engine_slow_step_fn *on_slow_step; /* on the engine thread, between two steps; or NULL */
    void *slow_step_arg;
};

struct engine *engine_start(const struct engine_config *c, struct err *e);
/* Ends every request with GEN_STOPPED and joins the thread. No other call may be running or come
 * later, and snapshots have been ended; handles of requests may still be freed. */
void engine_stop(struct engine *en);
struct pool *engine_pool(struct engine *en);
const struct kernels *engine_kernels(const struct engine *en);
struct image_bank *engine_bank(struct engine *en); /* borrowed: pass it to image_load_dir */

/* ---- messages ---- */
typedef void engine_fn(struct engine *en, void *arg);
void engine_call(struct engine *en, engine_fn *fn, void *arg);

/* Called on the engine thread between steps and when a deadline it returned (monotonic ns, 0: none)
 * passes. */
typedef int64_t engine_tick_fn(struct engine *en, void *arg);
void engine_set_tick(struct engine *en, engine_tick_fn *fn, void *arg);

/* ---- [engine] the resident ---- */
struct image *engine_resident(struct engine *en); /* borrowed, or NULL */
struct served *engine_served(struct engine *en);  /* borrowed, or NULL */
/* Swaps the resident between two steps; running requests end on their own image. Both consumed;
 * both NULL: no resident. */
void engine_set_resident(struct engine *en, struct image *im, struct served *s);
void engine_set_served(struct engine *en,
                       struct served *s); /* consumed: rename or count; same image */

/* The adapter (model/adapter.h, of the resident's config) that requests admitted from now on run
 * with, or NULL. Consumed. Beginnings that were kept are dropped. The service keeps the served
 * record's `adapter` in step. */
void engine_set_adapter(struct engine *en, struct adapter *a);

enum engine_gate {
    GATE_OPEN,
    GATE_HOLD,   /* newcomers wait (quiesced, writing, draining) */
    GATE_REFUSE, /* torn: waiting requests end with GEN_TORN at once, and so does every newcomer */
};
void engine_set_gate(struct engine *en, enum engine_gate g);
int engine_running(struct engine *en); /* requests on the resident's images that hold a slot */
int engine_waiting(struct engine *en); /* waiting or held */
/* Images of earlier residents that running requests still hold. */
int engine_old_images(struct engine *en);

/* ---- any thread ---- */
/* Waits until engine_running is 0 (the gate is GATE_HOLD). false: timeout. */
bool engine_wait_drained(struct engine *en, int64_t timeout_ms);
/* Waits until at most `n` old images are alive. */
bool engine_wait_images(struct engine *en, int n, int64_t timeout_ms);

/* One counted reference to the served record and image of this moment, NULL when there is no
 * resident. Never asks the engine thread. */
struct served *engine_peek_served(struct engine *en);
struct image *engine_peek_image(struct engine *en);
/* Both of one moment; two calls could tell a name from before a load and weights from after it. */
struct served *engine_peek(struct engine *en, struct image **image);

struct engine_stats {
    int running, waiting, /* running: requests that hold a slot, on whatever image */
        max_running, max_waiting;
    double median_slot_ms; /* of the last slot_times requests; < 0 below 3 samples */
    uint64_t prompt_tokens, generated_tokens, steps;
    size_t kv_bytes, kv_used;
    int images_alive;
};
void engine_get_stats(struct engine *en, struct engine_stats *out);
/* engine_stats.running alone, for those who ask all the time. */
int engine_slots(struct engine *en);

/* ---- generation ---- */
enum { GEN_TOP_MAX = 128, GEN_STOP_IDS_MAX = 32, GEN_PROMPTS_MAX = 4096 };

struct gen_bias {
    int32_t token;
    float bias;
};

struct gen_prompt {
    const int32_t *tokens; /* borrowed during engine_submit */
    int n;                 /* at least 1 */
    uint32_t sample_index; /* keys the random stream together with the seed */
};

enum gen_event_kind {
    GEN_ADMITTED,      /* served is set: the name, header and image of this request */
    GEN_PROMPT_KNOWN,  /* the first n_known positions of the prompt were computed before (may come
                          early) */
    GEN_PROMPT_TOKEN,  /* one scored prompt position (prompt_logprobs): token, logprob, top; first:
                          no logprob */
    GEN_TOKEN,         /* one generated token, the end token included */
    GEN_VECTOR,        /* the vector of one prompt (pooling) */
    GEN_SEQUENCE_DONE, /* reason says why */
    GEN_DONE,          /* every sequence is done; last event */
    /* failures; each is the last event */
    GEN_RESOLVE_AGAIN, /* weights were loaded since the name was resolved */
    GEN_TORN,
    GEN_HOLD_TIMEOUT,
    GEN_CANCELLED,
    GEN_EVICTED,    /* it was paused, and its KV memory was needed by others */
    GEN_NO_MEMORY,  /* KV memory cannot hold this request */
    GEN_NON_FINITE, /* logits hold NaN or +inf */
    GEN_NO_MODEL,
    GEN_STOPPED, /* the server stops */
};

enum gen_reason { GEN_STOP_ID, GEN_LENGTH, GEN_CUT /* engine_cut */ };

struct gen_top {
    int32_t token;
    float logprob;
};

struct gen_event {
    enum gen_event_kind kind;
    int sequence; /* index into spec->prompts */
    int n_known;
    int32_t token;
    bool has_logprob;
    float
        logprob; /* natural log, model's own distribution (temperature 1, before bias, penalties) */
    int n_top;
    const struct gen_top *top; /* borrowed during the call, best first */
    const float *vector;       /* GEN_VECTOR: [n_vector], borrowed during the call */
    int n_vector;              /* the model's hidden size */
    enum gen_reason reason;
    /* GEN_TOKEN with spec->tell_drawn: the distribution that the token was drawn from */
    float drawn_logprob;
    const int32_t *drawn;  /* borrowed during the call: the ids that could be drawn, rising */
    int n_drawn;           /* 0: the whole vocabulary */
    struct served *served; /* GEN_ADMITTED: borrowed; NULL when spec->image is set */
    struct image *image;   /* GEN_ADMITTED: borrowed */
};

/* One vector for a prompt, of the final norm's output at its positions. */
enum gen_pooling { GEN_POOL_NONE, GEN_POOL_MEAN, GEN_POOL_FIRST, GEN_POOL_LAST };

struct gen;
typedef void gen_event_fn(void *arg, const struct gen_event *ev);

struct gen_spec {
    const struct gen_prompt *prompts; /* copied */
    int n_prompts;                    /* sequences of this request; they share one slot */
    int max_tokens;                   /* 0: only score the prompt */
    float temperature;                /* 0: greedy */
    float top_p;                      /* 1: off */
    int top_k;                        /* 0: off */
    float min_p;                      /* 0: off */
    float frequency_penalty, presence_penalty, repetition_penalty; /* 0, 0, 1: off */
    uint64_t seed;
    const struct gen_bias *bias; /* copied */
    int n_bias;
    const int32_t *allowed; /* copied; NULL: every token */
    int n_allowed;
    /* The language of every answer (generate/grammar.h), bound to the vocabulary of the resident;
     * one more reference is taken. An answer ends, as with an end token, where nothing can follow.
     * NULL: any text. */
    struct grammar_bound *grammar;
    int32_t stop_ids[GEN_STOP_IDS_MAX]; /* end tokens */
    int n_stop_ids;
    int top_logprobs; /* -1: no logprobs; 0..GEN_TOP_MAX alternatives */
    bool
        score_sampled; /* log-probabilities of what is sampled: over temperature, among `allowed` */
    bool prompt_logprobs;     /* GEN_PROMPT_TOKEN events, top_logprobs alternatives each */
    enum gen_pooling pooling; /* GEN_VECTOR for each prompt; then max_tokens is 0 and nothing is
                                 scored */
    float prompt_temperature; /* scored prompts: of logits divided by it; 0: as they are */
    bool tell_drawn;          /* GEN_TOKEN tells the distribution drawn from */
    /* It gives way: admitted when nobody else waits, to half of the slots at most; neither counted
     * as waiting nor refused by a full queue nor timed while it is held. */
    bool background;
    uint64_t load_counter;
    /* Weights to run on instead of the resident, and the adapter beside them: counted by the
     * request. Then gate, load counter and the resident's own adapter do not matter. NULL: the
     * resident. */
    struct image *image;
    struct adapter *adapter;
    gen_event_fn *on_event; /* engine thread */
    void *arg;
};

/* Queues the request. NULL with ERR_SPACE: the queue is full; ERR_NOMEM; ERR_ARG: a token outside
 * the vocabulary. The handle stays valid until gen_free, which may be called after the last event.
 */
struct gen *engine_submit(struct engine *en, const struct gen_spec *spec, struct err *e);
void gen_cancel(struct gen *g); /* any thread: looked at once per token */
/* Any thread. While it is paused, a request with an image of its own (others: no effect) gives its
 * slot to others and keeps what it has computed, as long as nobody needs the memory (GEN_EVICTED).
 * It goes on where it stood when there is a slot. */
void gen_pause(struct gen *g, bool paused);
void gen_cut_sequence(struct gen *g,
                      int sequence); /* any thread: a stop string was found; ends with GEN_CUT */
void gen_free(struct gen *g);
#endif
