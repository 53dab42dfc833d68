/* service/identity.h - what the resident model is called, and which model a /v1 request gets.
 *
 * Calling order of a /v1 request: identity_find (is it torn, does the name mean the resident or
 * another row), then the endpoint's own checks of the body, then identity_take (load the other row
 * if that is allowed). The result pins nothing in the engine: submit with pin.load_counter,
 * and when the engine answers GEN_RESOLVE_AGAIN walk both again. Any thread, except the engine
 * thread. */
#ifndef SERVICE_IDENTITY_H
#define SERVICE_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct adapter;
struct buf;
struct image;
struct refusal;
struct served;
struct service;

enum load_policy { LOAD_POLICY_AUTO, LOAD_POLICY_REFUSE }; /* X-miLLM-Load-Policy */

struct identity_match {
    int64_t row_id;    /* the row the name means */
    bool resident;     /* it is the resident under its served name */
    const char *lease; /* X-miLLM-Lease, set by the caller before identity_take; or NULL */
};

struct identity_pin {
    struct served *served; /* counted: name, origin, commits of this moment */
    struct image *image;   /* counted: tokenizer, config, chat template */
    uint64_t load_counter;
    bool own_weights;        /* not the resident: the request brings image and adapter along */
    struct adapter *adapter; /* counted, or NULL */
};

/* 503 weights_torn, which every /v1 route answers before anything else; 0 otherwise. */
int identity_refuse_torn(struct service *s, struct refusal *r);

/* Rows 1 to 5 of the decision order: weights_torn, or model_not_found with the sentence that fits.
 */
int identity_find(struct service *s, const char *model, struct identity_match *m,
                  struct refusal *r);

/* Rows 7 to 13: for the resident at once; for another row model_not_resident, model_loading,
 * weights_unsaved, model_leased, model_locked, already_attached, model_busy, or a load that is
 * waited for (at most 180 s). `gone` (or NULL) ends the wait when the client leaves. Release *out
 * with identity_release. */
int identity_take(struct service *s, const struct identity_match *m, enum load_policy policy,
                  const atomic_bool *gone, struct identity_pin *out, struct refusal *r);
/* The whole decision for a job. */
struct identity_ask {
    const char *model;
    enum load_policy policy;
    const char *lease;         /* X-miLLM-Lease, or NULL */
    const char *authorization; /* of the request, or NULL: for a weaver:// model */
    const atomic_bool *gone;   /* or NULL */
    /* Not 0: the weights of this load, whatever they are called now, and no other;
     * model_not_resident when they have left. */
    uint64_t load_counter;
};
int identity_resolve(struct service *s, const struct identity_ask *ask, struct identity_pin *out,
                     struct refusal *r);
void identity_release(struct identity_pin *rv); /* a zeroed one is allowed */

/* X-miLLM-Model: "<name>";origin=<model|checkpoint|export>;commits=<n>, appended to b. Bytes
 * outside 0x20..0x7E and % " \ are written %XX. (RFC 8941, an item with two parameters.) */
void identity_header(const struct served *served, struct buf *b);

/* system_fingerprint: millm:<name>@<revision>:<dtype>/<quantization>:transformers. */
void identity_fingerprint(struct service *s, const struct served *served, const struct image *im,
                          struct buf *b);

/* One entry of GET /v1/models. */
struct identity_entry {
    const char *id;       /* the name that a request may use */
    const char *owned_by; /* repository id, or "miLLM" */
    int64_t created;      /* Unix seconds: load time, else creation time */
    bool locked_out;      /* another model is locked, so this one cannot be loaded now */
};
typedef void identity_entry_fn(void *arg, const struct identity_entry *entry);

/* The models that /v1 lists: rows in ready, loading or loaded; the resident under its served name,
 * not under its row name while that differs; checkpoint rows only while resident. -1: catalogue
 * unreadable. */
int identity_list(struct service *s, identity_entry_fn *fn, void *arg, struct refusal *r);
#endif
