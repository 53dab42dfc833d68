/* service/attach.c - hand the resident's memory to one other process, and take it back.
 *
 * Attach copies the image into a shared arena while serving goes on and swaps the pointer between
 * two steps; detach copies it back into private memory and swaps again, so that who is detached
 * cannot write into what is served. Docs: docs/decisions/0010-barrier-message.md. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/nomem.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "service/arena.h"
#include "service/body.h"
#include "service/memory.h"
#include "service/op.h"
#include "service/secret.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "tensor/weights.h"

enum { ATTACH_TRIES = 8 };

struct attach_op {
    struct op op; /* first: the checks take a struct op */
    const char *client;
    int64_t pid;
    int pidfd;
    char id[SECRET_MAX];  /* att_ and 43 characters; leaves the server once */
    struct image *source; /* counted: what was resident when the copy began */
    struct image *arena;  /* counted: the copy; NULL once it is resident */
    int64_t generation;
    uint64_t load_counter; /* when the copy began */
    bool moved;            /* another image became resident meanwhile: copy again */
    json_t *data;
};

/* ---- attach: refusals, in order ---- */

static int check_attach_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"client", "pid"};
    struct attach_op *a = ctx;
    struct body b = {.object = a->op.req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 2);
    body_str(&b, "client", CLIENT_NAME_MAX, &a->client);
    body_int(&b, "pid", 1, &a->pid);
    if (a->pid > INT_MAX)
        body_error(&b, "pid", "less_than_equal", "must be at most %d", INT_MAX);
    return body_refuse(&b, r);
}

static int check_not_attached(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    return op->w->attachment.present ? refuse_attached(op, NULL, r) : 0;
}

static int check_attachable(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    size_t counts[DTYPE_COUNT] = {0};
    char text[128];
    json_t *dtypes;

    if (!op->image)
        return 0; /* on the calling thread: decided on the engine thread */
    st_index_dtypes(&op->image->weights->index, counts, text, sizeof text);
    if (counts[DTYPE_BF16] == op->image->weights->n || counts[DTYPE_F16] == op->image->weights->n)
        return 0;
    dtypes = json_object();
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (counts[t])
            json_object_set_new(dtypes, dtype_name((enum dtype)t),
                                json_integer((json_int_t)counts[t]));
    return refuse_with(
        r, REFUSAL_NOT_ATTACHABLE, json_pack("{s:s, s:o}", "reason", "dtype", "dtypes", dtypes),
        "Only weights that are all BF16 or all F16 can be attached; these are %s.", text);
}

static int check_attach_memory(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    return op->image ? memory_refuse(op->s, op->image->weights->bytes, false, r) : 0;
}

static const struct refusal_rule attach_request_rules[] = {
    {"token", check_token},
    {"body", check_attach_body},
    {0},
};

const struct refusal_rule attach_state_rules[] = {
    {"ALREADY_ATTACHED", check_not_attached},
    {"MODEL_NOT_LOADED", check_resident},
    {"NOT_ATTACHABLE", check_attachable},
    {"INSUFFICIENT_MEMORY", check_attach_memory},
    {"MODEL_BUSY", check_loads},
    {"PAUSE_IN_PROGRESS", check_load_barrier},
    {0},
};

/* Again when the copy is made: it has its memory then. Who has left meanwhile would not learn the
 * id, and nobody else can detach a live attachment. */
const struct refusal_rule attach_install_rules[] = {
    {"CLIENT_CLOSED_REQUEST", check_client},
    {"ALREADY_ATTACHED", check_not_attached},
    {"MODEL_NOT_LOADED", check_resident},
    {"NOT_ATTACHABLE", check_attachable},
    {"MODEL_BUSY", check_loads},
    {"PAUSE_IN_PROGRESS", check_load_barrier},
    {0},
};

/* ---- attach: execution ---- */

static int note_source(struct op *op, struct refusal *r)
{
    struct attach_op *a = (struct attach_op *)op;

    (void)r;
    a->source = image_ref(engine_resident(op->s->engine));
    a->generation = ++op->s->weights->generation; /* of the arena to come */
    a->load_counter = op->s->weights->load_counter;
    return 0;
}

/* `auto`: a sealed memfd first, since a client cannot make the server stumble over it. */
static int make_arena(struct attach_op *a, struct err *e)
{
    const struct service *s = a->op.s;
    char name[sizeof a->arena->shm_name];
    bool memfd = s->settings->shm_transport != SHM_POSIX;

    snprintf(name, sizeof name, "/wsrv-%s-%" PRId64, s->boot_id, a->generation);
    if (memfd)
        a->arena = image_copy_shared(a->source, IMAGE_MEMFD, NULL, e);
    if (!a->arena && s->settings->shm_transport != SHM_MEMFD)
        a->arena = image_copy_shared(a->source, IMAGE_POSIX_SHM, name, e);
    return a->arena ? arena_permit(a->arena, s->settings, e) : -1;
}

static int install(struct op *op, struct refusal *r)
{
    struct attach_op *a = (struct attach_op *)op;
    struct service *s = op->s;
    struct attachment *at = &s->weights->attachment;

    a->moved = engine_resident(s->engine) != a->source ||
               s->weights->load_counter != a->load_counter; /* the copy may be of two versions */
    if (a->moved)
        return 0;
    a->data = arena_answer(s, a->arena, op->served, a->id);
    if (!a->data || nomem_noted()) { /* who cannot be told its id could never let go */
        json_decref(a->data);
        a->data = NULL;
        return refuse_no_memory(r);
    }
    image_bank_keep_spare(engine_bank(s->engine));
    engine_set_resident(s->engine, a->arena, served_ref(engine_served(s->engine)));
    a->arena = NULL;
    *at = (struct attachment){.present = true,
                              .serial = ++s->weights->next_serial,
                              .role = op->owner->role,
                              .pidfd = a->pidfd,
                              .attached_ms = clock_wall_ms()};
    op->proof = attachment_proof(a->id);
    memcpy(at->digest, op->proof.digest, sizeof at->digest);
    secret_ref(at->digest, at->ref);
    snprintf(at->identity, sizeof at->identity, "%s", op->owner->identity);
    snprintf(at->client, sizeof at->client, "%s", a->client ? a->client : "");
    a->pidfd = -1;
    state_sign_of_life(s);
    return 0;
}

/* Shared memory may have less room than memory. */
static int refuse_arena(const struct attach_op *a, const struct err *why, struct refusal *r)
{
    int64_t available = 0;
    struct err e = {0};
    int shm;

    if (why->code != ERR_NOMEM && why->code != ERR_SPACE)
        return refuse_internal(r, why);
    memory_refuse_failed(a->source->weights->bytes, why, r);
    shm = why->code == ERR_SPACE ? fs_open_dir("/dev/shm", &e) : -1;
    if (shm >= 0 && fs_free_bytes(shm, &available, &e) == 0)
        json_object_set_new(r->details, "available_bytes", json_integer(available));
    fs_close(shm);
    return -1;
}

/* For a text with a table of the tensors, also while it grows. A row is that of the file's header
 * and a few words more. */
static size_t answer_bytes(const struct image *im)
{
    enum { WORDS = 256, COPIES = 3 };
    const struct weights *w = im->weights;

    return NOMEM_ANSWER + COPIES * (w->data_start + w->n * WORDS);
}

/* One copy and one swap; a->moved says that the resident changed meanwhile. */
static int attach_once(struct attach_op *a, struct refusal *r)
{
    struct err e = {0};
    int rc;

    if (op_on_engine(&a->op, attach_state_rules, note_source, r) < 0)
        return -1;
    rc = make_arena(a, &e);
    if (rc < 0)
        refuse_arena(a, &e, r);
    else if (!nomem_set_aside(answer_bytes(a->arena)))
        rc = refuse_no_memory(r);
    else
        rc = op_on_engine(&a->op, attach_install_rules, install, r);
    image_unref(a->source);
    image_unref(a->arena);
    a->source = a->arena = NULL;
    return rc;
}

static int attach(struct attach_op *a, struct refusal *r)
{
    struct err e = {0};

    if (refusal_walk(attach_request_rules, a, r) < 0)
        return -1;
    if (secret_new("att_", a->id, &e) < 0)
        return refuse_internal(r, &e);
    if (a->pid)
        a->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)a->pid, 0); /* -1: not visible from here */
    for (int i = 0; i < ATTACH_TRIES; i++) {
        if (attach_once(a, r) < 0)
            return -1;
        if (!a->moved)
            return 0;
    }
    return refuse_with(r, REFUSAL_MODEL_BUSY, json_pack("{s:s}", "reason", "load_in_progress"),
                       "Other weights were loaded again and again while attaching; try again.");
}

int weights_attach(struct service *s, const struct weights_req *req, json_t **data,
                   struct refusal *r)
{
    struct attach_op a = {.pidfd = -1};
    int rc;

    op_begin(&a.op, s, req, "weights_attach");
    rc = attach(&a, r);
    if (a.pidfd >= 0)
        close(a.pidfd);
    *data = a.data;
    return op_end(&a.op, 201, rc, r);
}
