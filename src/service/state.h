/* service/state.h - attachment, commit, barrier and counters of the one set of weights.
 *
 * One struct weights_state, owned by the engine thread: functions marked [engine] run inside
 * engine_call or the tick. After each change state_changed sets the engine's gate, then publishes a
 * copy; state_read gives that copy to any thread. Timers are deadlines on the monotonic clock,
 * looked at by the engine's tick; at equality a timer has expired. Everything here is process
 * memory: a restart begins clean.
 *
 * Conditions: clean (every tensor has the same version), writing (a commit or a load is in
 * progress), torn (a write began and did not finish). Out of torn leads a late commit-end of the
 * same attachment, or a load. */
#ifndef SERVICE_STATE_H
#define SERVICE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "engine/served.h"
#include "service/tokens.h"
#include "store/name.h"

struct engine;
struct err;
struct image;
struct service;

enum condition { WEIGHTS_CLEAN, WEIGHTS_WRITING, WEIGHTS_TORN };
const char *condition_name(enum condition c); /* "clean", "writing", "torn" */

/* Who holds the barrier; `save` for an instant only. */
enum barrier_owner { OWNER_NONE, OWNER_QUIESCE, OWNER_SAVE, OWNER_LOAD, OWNER_ADAPTER };
const char *barrier_owner_name(enum barrier_owner o);

enum { CLIENT_NAME_MAX = 128 };

/* X-miLLM-Attachment as a digest; a header that is absent or malformed is `given` false. */
struct attachment_proof {
    bool given;
    unsigned char digest[SHA256_BYTES];
};

struct attachment {
    bool present;
    bool stale;
    bool leaving;    /* a detach is copying the weights back */
    uint64_t serial; /* tells one attachment from the next; never 0 */
    unsigned char digest[SHA256_BYTES];
    char ref[9]; /* 8 hex digits of the digest, for logs */
    char identity[TOKEN_IDENTITY_MAX + 1];
    enum role role;
    char client[4 * CLIENT_NAME_MAX + 1];
    int pidfd;                         /* -1: none */
    int64_t attached_ms, last_seen_ms; /* wall */
    int64_t last_seen_ns;              /* monotonic */
};

enum commit_kind { COMMIT_NONE, COMMIT_TRAINER, COMMIT_LOAD };

/* While the weights are not clean: what began the write. */
struct commit {
    enum commit_kind kind;
    uint64_t attachment; /* serial; 0 for a load */
    int64_t started_ms, started_ns;
    int64_t watchdog_ms, watchdog_ns; /* deadline, wall and monotonic; 0 for a load */
    char identity[TOKEN_IDENTITY_MAX + 1];
};

struct hold {
    bool on;                        /* quiesced */
    int64_t since_ms;               /* wall */
    int64_t expires_ms, expires_ns; /* 0: suspended */
    char owner[TOKEN_IDENTITY_MAX + 1];
};

struct save_slot {
    bool busy;
    char name[SERVED_NAME_MAX];
    const char *stage; /* static */
    int64_t started_ms;
};

struct last_save {
    bool any;
    char name[SERVED_NAME_MAX];
    char path[CKPT_PATH_MAX];
    char weights_sha256[SHA256_HEX], manifest_sha256[SHA256_HEX];
    int64_t bytes, saved_ms;
    bool identity_set, parent_match;
};

struct overrun {
    bool any;
    double commit_ms;
    int64_t at_ms;
};

struct applied_adapter {
    bool any;
    char name[SERVED_ADAPTER_MAX];
    double scale;
    int64_t applied_ms;
    int n_modules;
};

struct weights_state {
    enum condition condition;
    enum barrier_owner owner;
    bool draining; /* the owner waits for running requests: newcomers are held */
    struct attachment attachment;
    struct commit commit;
    struct hold hold;
    struct save_slot save;
    struct last_save last_save;
    struct overrun last_overrun;
    struct applied_adapter adapter;
    int64_t steps_since_load;
    int64_t commits_ever; /* commit-ends of this process: a save tells by it what came after */
    int64_t hold_timeouts;
    int64_t generation;    /* grows with every load that replaces or makes the memory */
    uint64_t load_counter; /* grows with every load */
    int64_t loading_row, unloading_row; /* catalogue work in progress, else 0 */
    uint64_t next_serial;
};

/* ---- [engine] ---- */
void state_changed(struct service *s); /* sets the gate, publishes */
/* The attachment made itself heard (every call with the right id, refused ones too). */
void state_sign_of_life(struct service *s);
bool proof_matches(const struct attachment *a, const struct attachment_proof *p);
void state_hold_begin(struct service *s, const char *owner);
void state_hold_suspend(struct service *s);
void state_hold_restart(struct service *s); /* the timer anew, if held, clean and no commit open */
void state_hold_end(struct service *s);
/* The weights are about to be written or let go by a load of `identity`: `writing`. */
void state_load_begins(struct service *s, const char *identity);
void state_attachment_stale(struct service *s, const char *why);
/* Torn, when a client has cut `im`, a shared image that serves or has served until now. */
void state_note_damage(struct service *s, const struct image *im);
void state_attachment_end(struct service *s); /* closes the pidfd; a clean hold ends */
/* The engine's tick: hold timer, commit watchdog, heartbeat, death of the client. Next deadline, 0:
 * none. */
int64_t state_tick(struct engine *en, void *service);

/* ---- any thread ---- */
struct board *board_new(struct err *e);
void board_free(struct board *b);
/* The published copy; *served (may be NULL) gets a counted reference or NULL. */
void state_read(struct service *s, struct weights_state *out, struct served **served);
bool state_torn(struct service *s); /* without a lock */
/* The stage of the save that is writing (static string): its own thread tells, no message needed.
 */
void state_save_stage(struct service *s, const char *stage);

struct attachment_proof attachment_proof(const char *header); /* NULL: not given */
#endif
