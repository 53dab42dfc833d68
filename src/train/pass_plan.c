/* train/pass_plan.c - how the rows of a call use the budget, and the memory for it.
 *
 * In falling order of liking: one group, with as many layers kept as fit; several groups with all
 * layers kept (each goes forward twice, but no layer three times); several with what fits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cutter.h"
#include "base/err.h"
#include "model/adapter.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "train/pass_impl.h"

enum {
    GROUP_ROWS = 256, /* smaller groups would read and write weight gradients too often */
    ROWS_MAX = 1 << 24,
};

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int q_width(const struct model_config *c)
{
    return c->n_conv_layers ? larger(model_q_width(c), 3 * c->hidden) : model_q_width(c);
}

static int places_of(const struct model_config *c, const struct plan *pl)
{
    return pl->kept < c->n_layers ? pl->kept + 1 : pl->kept;
}

/* A pass that goes back walks layer by layer. */
static enum kv_layers kv_layers_of(const struct pass_job *job)
{
    return job->backward ? KV_ONE_LAYER : KV_ALL_LAYERS;
}

/* ---- cutting ---- */

static void cut_inner(struct arena_rows *a, struct cutter *c, const struct model_config *g, int n,
                      int rows)
{
    a->q = cutter_rows(c, n, rows, q_width(g));
    a->kv = cutter_rows(c, n, rows, 2 * model_kv_width(g));
    a->q_raw = cutter_rows(c, n, rows, g->qk_norm ? model_q_width(g) : 0);
    a->k_raw = cutter_rows(c, n, rows, g->qk_norm ? model_kv_width(g) : 0);
    a->mixed = cutter_rows(c, n, rows, larger(model_q_width(g), g->hidden));
    a->mid = cutter_rows(c, n, rows, g->hidden);
    a->gate = cutter_rows(c, n, rows, g->ff);
    a->up = cutter_rows(c, n, rows, g->ff);
}

static void cut_stream(struct arena_rows *a, struct cutter *c, const struct model_config *g,
                       int rank, int rows)
{
    a->dx = cutter_rows(c, 1, rows, g->hidden);
    a->h = cutter_rows(c, 1, rows, g->hidden);
    a->dh = cutter_rows(c, 1, rows, g->hidden);
    a->r = cutter_rows(c, 1, rows, g->n_heads + g->n_kv_heads);
    a->lora_u = cutter_rows(c, 3, rows, rank);
    a->lora_du = cutter_rows(c, 3, rows, rank);
}

/* What the head does not use. */
static void cut_layer(struct arena_rows *a, struct cutter *c, const struct model_config *g,
                      int rows)
{
    a->act = cutter_rows(c, 1, rows, g->ff);
    a->d_act = cutter_rows(c, 1, rows, g->ff);
    a->d_mixed = cutter_rows(c, 1, rows, larger(model_q_width(g), g->hidden));
    a->dq = cutter_rows(c, 1, rows, q_width(g));
    a->dkv = cutter_rows(c, 1, rows, 2 * model_kv_width(g));
    a->dk = cutter_rows(c, 1, rows, g->qk_norm ? model_kv_width(g) : 0);
    a->stats = cutter_rows(c, 1, rows, 3 * g->n_heads);
}

/* The logits of the only group have been read when its layers go back: these lie over them. */
static void cut_gradients(struct pass *p, struct cutter *c, const struct plan *pl)
{
    const struct model_config *g = &p->config;
    struct cutter layer;

    cut_stream(&p->a, c, g, pl->rank, pl->rows);
    layer = *c;
    p->kept_logits = cutter_rows(c, 1, pl->kept_logits, g->vocab);
    if (pl->n_groups > 1)
        layer = *c;
    cut_layer(&p->a, &layer, g, pl->rows);
    if (layer.used > c->used)
        c->used = layer.used;
}

/* Everything of a call but the caches. */
static size_t cut_call(struct pass *p, const struct plan *pl, const struct pass_job *job, int rows,
                       char *base)
{
    const struct model_config *g = &p->config;
    struct cutter c = {.base = base};
    size_t n = (size_t)rows;

    p->token = cutter_take(&c, n, sizeof *p->token);
    p->target = cutter_take(&c, n, sizeof *p->target);
    p->pos = cutter_take(&c, n, sizeof *p->pos);
    p->first_row = cutter_take(&c, (size_t)job->n_sequences, sizeof *p->first_row);
    p->logprob = cutter_take(&c, n, sizeof(float));
    p->entropy = cutter_take(&c, n, sizeof(float));
    p->max = cutter_take(&c, n, sizeof(float));
    p->inv = cutter_take(&c, n, sizeof(float));
    p->ends = cutter_take(&c, (size_t)job->n_sequences, sizeof *p->ends);
    p->active = cutter_take(&c, (size_t)pl->rows, sizeof *p->active);
    p->runs = cutter_take(&c, FORWARD_ROWS_MAX, sizeof *p->runs);
    p->answers = cutter_take(&c, HEAD_TILE, sizeof *p->answers);
    p->hidden = cutter_rows(&c, 1, FORWARD_ROWS_MAX, g->hidden);
    p->a.inputs = cutter_rows(&c, pl->inputs, pl->rows, g->hidden);
    cut_inner(&p->a, &c, g, places_of(g, pl), pl->rows);
    if (job->backward) {
        p->d_embed = cutter_rows(&c, 1, rows, g->hidden);
        p->head = cutter_rows(&c, 1, HEAD_ROWS, HEAD_BLOCK);
        p->head_ends = cutter_take(&c, HEAD_ROWS, sizeof *p->head_ends);
        p->head_px = cutter_take(&c, p->k->linear_x_bytes(HEAD_ROWS, g->hidden), 1);
        cut_gradients(p, &c, pl);
    }
    return c.used;
}

/* ---- choosing ---- */

/* What a choice needs to know. */
struct chooser {
    struct pass *p; /* a copy that may be cut */
    const struct pass_job *job;
    struct plan *pl;
    int rows, longest;
};

/* Groups of at most `limit` rows, or one sequence. */
static void make_groups(const struct chooser *ch, int limit)
{
    struct plan *pl = ch->pl;
    struct group *g = NULL;
    int row = 0, widest = 0;

    pl->n_groups = pl->n_slots = 0;
    for (int i = 0; i < ch->job->n_sequences; row += ch->job->sequences[i++].n) {
        int n = ch->job->sequences[i].n;

        if (!g || g->rows + n > limit) {
            g = &pl->groups[pl->n_groups++];
            *g = (struct group){.first = i, .row = row};
        }
        if (g->n == pl->n_slots)
            pl->slot_rows[pl->n_slots++] = 0;
        pl->slot_rows[g->n] = larger(pl->slot_rows[g->n], n);
        g->n++;
        g->rows += n;
        widest = larger(widest, g->rows);
    }
    pl->rows = ch->job->backward || widest < FORWARD_ROWS_MAX ? widest : FORWARD_ROWS_MAX;
    pl->kv_bytes = 0;
    for (int i = 0; i < pl->n_slots; i++)
        pl->kv_bytes += (size_t)blocks_of(pl->slot_rows[i], KV_BLOCK);
    pl->kv_bytes *= kv_block_bytes(&ch->p->config, kv_layers_of(ch->job));
}

static bool fits(const struct chooser *ch, int kept)
{
    struct plan *pl = ch->pl;

    pl->kept = kept;
    pl->bytes = cut_call(ch->p, pl, ch->job, ch->rows, NULL) + pl->kv_bytes;
    return pl->bytes <= ch->p->budget;
}

/* The most layers that can be kept: bytes grow with them. At least none fits. */
static void keep_what_fits(const struct chooser *ch)
{
    int low = 0, high = ch->p->config.n_layers;

    while (low < high) {
        int mid = (low + high + 1) / 2;

        if (fits(ch, mid))
            low = mid;
        else
            high = mid - 1;
    }
    fits(ch, low);
}

/* Groups from all rows down to `least` of them, smaller by a quarter each time. */
static bool try_groups(const struct chooser *ch, int kept, int least)
{
    for (int limit = ch->rows;; limit = larger(limit / 4 * 3, least)) {
        make_groups(ch, limit);
        if (fits(ch, kept))
            return true;
        if (limit <= least)
            return false;
    }
}

/* The rest of the budget: what is kept is not multiplied again. Under a temperature the forward
 * half has divided its logits, and the backward half wants them whole. */
static void keep_logits(const struct chooser *ch)
{
    struct plan *pl = ch->pl;
    size_t row = (size_t)ch->p->config.vocab * sizeof(float);
    struct cutter under = {0};

    if (pl->n_groups == 1)
        cut_layer(&ch->p->a, &under, &ch->p->config, pl->rows);
    size_t budget = ch->p->budget + under.used;
    size_t room = budget > pl->bytes ? (budget - pl->bytes) / row : 0;
    int rows = room < (size_t)ch->rows ? (int)room / HEAD_PART_ROWS * HEAD_PART_ROWS : ch->rows;

    if (!ch->job->backward || ch->job->temperature != 1)
        return;
    for (; rows > 0; rows = (rows - 1) / HEAD_PART_ROWS * HEAD_PART_ROWS) {
        pl->kept_logits = rows;
        if (fits(ch, pl->kept))
            return;
    }
    pl->kept_logits = 0;
    fits(ch, pl->kept);
}

static int choose_layers(const struct chooser *ch, struct err *e)
{
    int all = ch->job->backward ? ch->p->config.n_layers : 0;

    make_groups(ch, ch->rows);
    if (fits(ch, 0) ||
        (!try_groups(ch, all, larger(ch->longest, GROUP_ROWS)) && try_groups(ch, 0, ch->longest))) {
        if (ch->job->backward && ch->pl->kept == 0)
            keep_what_fits(ch);
        return 0;
    }
    if (ch->pl->bytes <= ch->p->budget)
        return 0;
    return err_set(
        e, ERR_SPACE,
        "%d rows, the longest sequence of %d, take %zu bytes of memory at least, %zu are "
        "allowed: shorten or split the batch",
        ch->rows, ch->longest, ch->pl->bytes, ch->p->budget);
}

/* ---- checks ---- */

static int check_sequence(const struct pass *p, const struct pass_sequence *s, int i, struct err *e)
{
    const struct model_config *c = &p->config;

    if (s->n < 1 || s->n > c->max_positions)
        return err_set(e, ERR_ARG, "sequence %d has %d tokens, expected 1 to %d", i, s->n,
                       c->max_positions);
    for (int t = 0; t < s->n; t++) {
        if (s->tokens[t] < 0 || s->tokens[t] >= c->vocab)
            return err_set(e, ERR_ARG,
                           "token %" PRId32 " of sequence %d is outside the vocabulary "
                           "of %d",
                           s->tokens[t], i, c->vocab);
        if (s->targets[t] != NO_TARGET && (s->targets[t] < 0 || s->targets[t] >= c->vocab))
            return err_set(e, ERR_ARG,
                           "target %" PRId32 " of sequence %d is neither -100 nor in "
                           "the vocabulary of %d",
                           s->targets[t], i, c->vocab);
    }
    return 0;
}

static int check_job(const struct pass *p, const struct pass_job *job, struct chooser *ch,
                     struct err *e)
{
    if (job->n_sequences < 1)
        return err_set(e, ERR_ARG, "a pass without sequences");
    if (!(job->temperature > 0))
        return err_set(e, ERR_ARG, "temperature %g is not above 0", (double)job->temperature);
    for (int i = 0; i < job->n_sequences; i++) {
        if (check_sequence(p, &job->sequences[i], i, e) < 0)
            return -1;
        if (job->sequences[i].n > ROWS_MAX - ch->rows)
            return err_set(e, ERR_ARG, "more than %d tokens in one pass", ROWS_MAX);
        ch->rows += job->sequences[i].n;
        ch->longest = larger(ch->longest, job->sequences[i].n);
    }
    return 0;
}

static int rank_of(const struct adapter *a)
{
    int rank = 0;

    for (int i = 0; a && i < adapter_slots(a->n_layers); i++)
        rank = larger(rank, adapter_slot_of(a, i)->a.n);
    return rank;
}

int plan_make(struct pass *p, const struct pass_job *job, struct plan *plan, struct err *e)
{
    struct pass copy = *p;
    struct chooser ch = {.p = &copy, .job = job, .pl = plan};

    *plan = (struct plan){.rank = rank_of(job->adapter)};
    plan->inputs = job->backward ? p->config.n_layers + 1 : 1;
    if (check_job(p, job, &ch, e) < 0)
        return -1;
    plan->groups = calloc((size_t)job->n_sequences, sizeof *plan->groups);
    plan->slot_rows = calloc((size_t)job->n_sequences, sizeof *plan->slot_rows);
    if (!plan->groups || !plan->slot_rows)
        err_nomem(e);
    else if (choose_layers(&ch, e) == 0) {
        keep_logits(&ch);
        return 0;
    }
    plan_release(plan);
    return -1;
}

void plan_release(struct plan *plan)
{
    free(plan->groups);
    free(plan->slot_rows);
    *plan = (struct plan){0};
}

/* ---- taking ---- */

/* Growing keeps the pages that have been touched: fresh ones cost more than anything else here. */
static int take_memory(struct pass *p, size_t bytes, struct err *e)
{
    void *map;

    if (bytes <= p->memory_bytes && p->memory_bytes <= p->budget)
        return 0;
    if (p->memory)
        map = mremap(p->memory, p->memory_bytes, bytes, MREMAP_MAYMOVE);
    else
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (map == MAP_FAILED)
        return err_nomem(e);
    madvise(map, bytes, MADV_HUGEPAGE);
    p->memory = map;
    p->memory_bytes = bytes;
    return 0;
}

/* One sequence for each place of a group, its blocks taken for good. */
static int take_slots(struct pass *p, const struct pass_job *job, const struct plan *plan,
                      struct err *e)
{
    enum kv_layers layers = kv_layers_of(job);
    size_t blocks = plan->kv_bytes / kv_block_bytes(&p->config, layers);

    pass_drop_slots(p);
    if (!p->kv || p->kv_layers != layers || (size_t)kv_cache_blocks(p->kv) < blocks) {
        kv_cache_free(p->kv);
        p->kv = kv_cache_new(&p->config, layers, plan->kv_bytes, e);
        p->kv_layers = layers;
    }
    p->slots = p->kv ? calloc((size_t)plan->n_slots, sizeof *p->slots) : NULL;
    if (!p->slots)
        return p->kv ? err_nomem(e) : -1;
    for (; p->n_slots < plan->n_slots; p->n_slots++) {
        struct kv_seq *s = kv_seq_new(p->kv, e);

        if (!s)
            return -1;
        p->slots[p->n_slots].seq = s;
        if (kv_seq_extend(s, plan->slot_rows[p->n_slots], e) < 0) {
            kv_seq_free(s);
            return -1;
        }
    }
    return 0;
}

void pass_drop_slots(struct pass *p)
{
    while (p->n_slots > 0)
        kv_seq_free(p->slots[--p->n_slots].seq);
    free(p->slots);
    p->slots = NULL;
}

int plan_take(struct pass *p, const struct pass_job *job, const struct plan *plan, int rows,
              struct err *e)
{
    if (take_memory(p, plan->bytes - plan->kv_bytes, e) < 0 || take_slots(p, job, plan, e) < 0)
        return -1;
    cut_call(p, plan, job, rows, p->memory);
    return 0;
}

void pass_free_memory(struct pass *p)
{
    if (p->memory)
        munmap(p->memory, p->memory_bytes);
}
