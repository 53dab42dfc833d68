/* model/forward.c - checks a batch, then runs the layers phase by phase (step.h). */
#include "model/forward.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/pool.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

enum {
    SPANS_MAX = FORWARD_ROWS_MAX,
    ROW_ITEM = 16, /* rows of one item where a row costs little */
};

struct forward *forward_new(const struct model_config *c, const struct kernels *k, struct pool *p,
                            struct err *e)
{
    struct forward *f = calloc(1, sizeof *f);
    long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);

    if (!f) {
        err_nomem(e);
        return NULL;
    }
    f->k = k;
    f->pool = p;
    f->config = *c;
    f->tile_bytes = l2 > 0 ? (size_t)l2 / 2 : (size_t)256 * 1024;
    if (rope_table_init(&f->rope, &c->rope, c->head_dim, e) < 0 || scratch_init(f, e) < 0) {
        forward_free(f);
        return NULL;
    }
    return f;
}

void forward_free(struct forward *f)
{
    if (!f)
        return;
    rope_table_release(&f->rope);
    scratch_release(f);
    free(f);
}

/* Everything the scratch sizes, the rope tables and the cache layout depend on. */
bool forward_fits(const struct forward *f, const struct model_config *c)
{
    const struct model_config *o = &f->config;

    return o->n_layers == c->n_layers && o->hidden == c->hidden && o->ff == c->ff &&
           o->n_heads == c->n_heads && o->n_kv_heads == c->n_kv_heads &&
           o->head_dim == c->head_dim && o->vocab == c->vocab &&
           o->max_positions == c->max_positions && o->norm_eps == c->norm_eps &&
           o->n_conv_layers == c->n_conv_layers && o->conv_taps == c->conv_taps &&
           memcmp(o->is_conv, c->is_conv, sizeof o->is_conv) == 0 &&
           o->rope.theta == c->rope.theta && o->rope.type == c->rope.type &&
           o->rope.factor == c->rope.factor && o->rope.low_freq_factor == c->rope.low_freq_factor &&
           o->rope.high_freq_factor == c->rope.high_freq_factor &&
           o->rope.original_positions == c->rope.original_positions;
}

void forward_set_tap(struct forward *f, forward_tap_fn *fn, void *arg)
{
    f->tap = fn;
    f->tap_arg = arg;
}

struct pool *forward_pool(const struct forward *f)
{
    return f->pool;
}

const struct kernels *forward_kernels(const struct forward *f)
{
    return f->k;
}

/* ---- the batch ---- */

static int check_span(const struct forward *f, const struct forward_span *s, struct err *e)
{
    int pos0 = kv_seq_length(s->seq);

    if (s->n < 1 || s->n > FORWARD_ROWS_MAX)
        return err_set(e, ERR_ARG, "a span of %d tokens, expected 1 to %d", s->n, FORWARD_ROWS_MAX);
    if (s->n > f->config.max_positions - pos0)
        return err_set(e, ERR_ARG, "position %d is past the model's %d", pos0 + s->n - 1,
                       f->config.max_positions);
    for (int i = 0; i < s->n; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= f->config.vocab)
            return err_set(e, ERR_ARG, "token %d is outside the vocabulary of %d", s->tokens[i],
                           f->config.vocab);
    return 0;
}

/* Runs, positions and the number of rows; nothing is changed. */
static int check_batch(const struct forward *f, const struct forward_batch *b, struct row_run *runs,
                       int *rows, struct err *e)
{
    int n = 0, last = -1;

    if (b->n_spans < 1 || b->n_spans > SPANS_MAX)
        return err_set(e, ERR_ARG, "%d spans, expected 1 to %d", b->n_spans, SPANS_MAX);
    for (int i = 0; i < b->n_spans; i++) {
        const struct forward_span *s = &b->spans[i];

        if (check_span(f, s, e) < 0)
            return -1;
        runs[i] = (struct row_run){s->seq, n, s->n, kv_seq_length(s->seq), s->adapter};
        n += s->n;
        if (n > FORWARD_ROWS_MAX)
            return err_set(e, ERR_ARG, "more than %d rows in one step", FORWARD_ROWS_MAX);
    }
    for (int i = 0; i < b->n_select; i++) {
        if (b->select[i] <= last || b->select[i] >= n)
            return err_set(e, ERR_ARG, "selected rows do not rise within 0 to %d", n - 1);
        last = b->select[i];
    }
    *rows = n;
    return 0;
}

/* Memory for every span's positions, or nothing changed. */
static int take_memory(struct forward *f, const struct row_run *runs, int n_runs, struct err *e)
{
    int taken = 0;

    for (; taken < n_runs; taken++) {
        const struct row_run *r = &runs[taken];

        if (rope_table_grow(&f->rope, r->pos0 + r->n, e) < 0 || kv_seq_extend(r->seq, r->n, e) < 0)
            break;
    }
    if (taken == n_runs)
        return 0;
    while (--taken >= 0)
        kv_seq_trim(runs[taken].seq);
    return -1;
}

/* ---- work over rows ---- */

struct row_work {
    const struct step *s;
    const struct forward_batch *b;
    const float *x;
    float *out;
};

static void over_rows(const struct step *s, pool_fn *fn, struct row_work *w, int rows)
{
    int items = (rows + ROW_ITEM - 1) / ROW_ITEM;

    if (items == 1)
        fn(w, 0, 0); /* cheaper than waking the others */
    else
        pool_run(s->f->pool, fn, w, items);
}

static int item_end(int item, int rows)
{
    return (item + 1) * ROW_ITEM < rows ? (item + 1) * ROW_ITEM : rows;
}

static int32_t token_of_row(const struct step *s, const struct forward_batch *b, int row)
{
    int i = 0;

    while (row >= s->spans[i].row + s->spans[i].n)
        i++;
    return b->spans[i].tokens[row - s->spans[i].row];
}

static void embed_item(void *arg, int item, int worker)
{
    const struct row_work *w = arg;
    const struct kern_matrix *embed = &w->s->m->embed;
    size_t row_bytes = (size_t)embed->k * kern_dtype_bytes(embed->dtype);

    (void)worker;
    for (int r = item * ROW_ITEM; r < item_end(item, w->s->rows); r++) {
        size_t token = (size_t)token_of_row(w->s, w->b, r);

        w->s->f->k->to_f32(w->out + (size_t)r * (size_t)embed->k,
                           (const char *)embed->w + token * row_bytes, embed->dtype,
                           (size_t)embed->k);
    }
}

static void gather_item(void *arg, int item, int worker)
{
    const struct row_work *w = arg;
    size_t H = (size_t)w->s->f->config.hidden;

    (void)worker;
    for (int i = item * ROW_ITEM; i < item_end(item, w->s->n_select); i++)
        memcpy(w->out + (size_t)i * H, w->x + (size_t)w->s->select[i] * H, H * sizeof(float));
}

static void final_norm_item(void *arg, int item, int worker)
{
    const struct row_work *w = arg;
    const struct forward *f = w->s->f;
    int H = f->config.hidden;

    (void)worker;
    for (int i = item * ROW_ITEM; i < item_end(item, w->s->n_select); i++) {
        const float *x = w->x == f->picked ? w->x + (size_t)i * (size_t)H
                                           : w->x + (size_t)w->s->select[i] * (size_t)H;

        f->k->rmsnorm(w->out + (size_t)i * (size_t)H, H, x, H, w->s->m->final_norm, w->s->m->dtype,
                      1, H, f->config.norm_eps);
    }
}

/* ---- layers ---- */

/* A phase over these rows of the layer, everything else zero. */
static struct linear_phase phase_of(const struct step *s, const struct layer *l,
                                    const struct row_run *runs, int n_runs)
{
    return (struct linear_phase){
        .layer = l, .layer_index = (int)(l - s->m->layers), .runs = runs, .n_runs = n_runs};
}

/* Rows of the residual stream that a layer's second half works on. */
struct stream {
    float *x;
    int rows;
    const struct row_run *runs; /* their positions */
    int n_runs;
};

static void project_kv(const struct step *s, const struct layer *l, const struct stream *q)
{
    struct forward *f = s->f;
    int H = f->config.hidden, kv = model_kv_width(&f->config), ldq = model_q_width(&f->config);
    struct linear_phase p = phase_of(s, l, s->spans, s->n_spans);

    p.x = f->x;
    p.ldx = p.k = H;
    p.rows = s->rows;
    p.norm = l->norm_in;
    p.out[0] = (struct linear_out){&l->k, l->k_bias, f->kv, 2 * kv};
    p.out[1] = (struct linear_out){&l->v, l->v_bias, f->kv + kv, 2 * kv};
    p.n_out = 2;
    if (q->x == f->x && q->rows > 0)
        p.out[p.n_out++] = (struct linear_out){&l->q, l->q_bias, f->q, ldq};
    step_project(s, &p);
    if (q->x == f->x || q->rows == 0)
        return;
    p.x = q->x;
    p.rows = q->rows;
    p.runs = q->runs;
    p.n_runs = q->n_runs;
    p.out[0] = (struct linear_out){&l->q, l->q_bias, f->q, ldq};
    p.n_out = 1;
    step_project(s, &p);
}

/* f->mixed [rows of q]: attention of the stream's rows over everything stored, this step included.
 */
static void mix_attention(const struct step *s, const struct layer *l, const struct stream *q)
{
    bool fused = s->short_spans && q->rows > 0 && q->x == s->f->x; /* runs are the spans */

    project_kv(s, l, q);
    if (!fused)
        step_store_kv(s, l);
    if (q->rows > 0)
        step_attend(s, l, q->runs, q->n_runs, fused);
}

static void mix_convolution(const struct step *s, const struct layer *l)
{
    struct forward *f = s->f;
    int H = f->config.hidden;
    struct linear_phase p = phase_of(s, l, s->spans, s->n_spans);

    p.x = f->x;
    p.ldx = p.k = H;
    p.rows = s->rows;
    p.norm = l->norm_in;
    p.out[0] = (struct linear_out){&l->conv_in, l->conv_in_bias, f->q, 3 * H};
    p.n_out = 1;
    step_project(s, &p);
    step_convolve(s, l);
}

static void project_out(const struct step *s, const struct layer *l, const struct stream *to)
{
    struct forward *f = s->f;
    const struct kern_matrix *w = l->is_conv ? &l->conv_out : &l->o;
    struct linear_phase p = phase_of(s, l, to->runs, to->n_runs);

    p.x = f->mixed;
    p.ldx = p.k = w->k;
    p.rows = to->rows;
    p.out[0] =
        (struct linear_out){w, l->is_conv ? l->conv_out_bias : l->o_bias, to->x, f->config.hidden};
    p.n_out = 1;
    p.accumulate = true;
    step_project(s, &p);
}

static void feed_forward(const struct step *s, const struct layer *l, const struct stream *to)
{
    struct forward *f = s->f;
    int H = f->config.hidden, ff = f->config.ff;
    struct linear_phase in = phase_of(s, l, to->runs, to->n_runs);
    struct linear_phase out = in;

    in.x = to->x;
    in.ldx = in.k = H;
    in.rows = out.rows = to->rows;
    in.norm = l->norm_ff;
    in.swiglu = true;
    out.x = f->gate;
    out.ldx = out.k = ff;
    out.accumulate = true;
    in.out[0] = (struct linear_out){&l->gate, l->gate_bias, f->gate, ff};
    in.out[1] = (struct linear_out){&l->up, l->up_bias, f->up, ff};
    in.n_out = 2;
    step_project(s, &in);
    out.out[0] = (struct linear_out){&l->down, l->down_bias, to->x, H};
    out.n_out = 1;
    step_project(s, &out);
}

static void run_layer(const struct step *s, const struct layer *l, const struct stream *to)
{
    struct forward *f = s->f;

    if (l->is_conv) {
        mix_convolution(s, l);
        if (to->x == f->picked && to->rows > 0) {
            struct row_work w = {.s = s, .x = f->mixed, .out = f->norm};

            over_rows(s, gather_item, &w, to->rows);
            memcpy(f->mixed, f->norm, (size_t)to->rows * (size_t)f->config.hidden * sizeof(float));
        }
    } else {
        mix_attention(s, l, to);
    }
    project_out(s, l, to);
    feed_forward(s, l, to);
}

/* The selected rows as runs of consecutive positions, numbered as they will lie in f->picked. */
static int select_runs(const struct step *s, struct row_run *runs)
{
    int n = 0, span = 0;

    for (int i = 0; i < s->n_select; i++) {
        int row = s->select[i];

        while (row >= s->spans[span].row + s->spans[span].n)
            span++;
        const struct row_run *from = &s->spans[span];
        int pos = from->pos0 + row - from->row;

        if (n > 0 && runs[n - 1].seq == from->seq && runs[n - 1].pos0 + runs[n - 1].n == pos)
            runs[n - 1].n++;
        else
            runs[n++] = (struct row_run){from->seq, i, 1, pos, from->adapter};
    }
    return n;
}

/* After the last layer's keys and values nothing but the selected rows matters: the rest is done
 * for them alone. Narrow steps are bound by reading weights and gain nothing, unless no row is
 * wanted. */
static struct stream last_stream(const struct step *s, const struct stream *all,
                                 struct row_run *runs)
{
    struct stream to = *all;

    if (s->n_select == s->rows || (s->narrow && s->n_select > 0))
        return to;
    to.x = s->f->picked;
    to.rows = s->n_select;
    to.runs = runs;
    to.n_runs = select_runs(s, runs);
    if (to.rows > 0) {
        struct row_work w = {.s = s, .x = s->f->x, .out = to.x};

        over_rows(s, gather_item, &w, to.rows);
    }
    return to;
}

static void tap(const struct step *s, int layer, const struct stream *x)
{
    if (s->f->tap)
        s->f->tap(s->f->tap_arg, layer, x->x, x->rows, s->f->config.hidden);
}

static void run_step(const struct step *s, const struct forward_batch *b, float *out)
{
    struct row_run picked[FORWARD_ROWS_MAX];
    struct stream x = {s->f->x, s->rows, s->spans, s->n_spans};
    struct row_work embed = {.s = s, .b = b, .out = s->f->x};
    struct row_work norm = {.s = s, .out = out};
    int last = s->f->config.n_layers - 1;

    over_rows(s, embed_item, &embed, s->rows);
    tap(s, -1, &x);
    for (int i = 0; i <= last; i++) {
        if (i == last)
            x = last_stream(s, &x, picked);
        run_layer(s, &s->m->layers[i], &x);
        tap(s, i, &x);
    }
    norm.x = x.x;
    if (s->n_select > 0)
        over_rows(s, final_norm_item, &norm, s->n_select);
}

int forward_run(struct forward *f, const struct model *m, const struct forward_batch *b, float *out,
                struct err *e)
{
    struct row_run runs[SPANS_MAX] = {{.n = 0}};
    struct step s = {.f = f, .m = m, .spans = runs, .select = b->select, .n_select = b->n_select};

    if (check_batch(f, b, runs, &s.rows, e) < 0)
        return -1;
    s.n_spans = b->n_spans;
    s.narrow = s.rows <= NARROW_ROWS;
    s.short_spans = s.narrow;
    for (int i = 0; i < s.n_spans; i++)
        s.short_spans &= runs[i].n <= NARROW_ATTEND_ROWS;
    if (take_memory(f, runs, b->n_spans, e) < 0)
        return -1;
    if (s.narrow)
        step_list_pages(&s);
    run_step(&s, b, out);
    for (int i = 0; i < b->n_spans; i++)
        kv_seq_advance(b->spans[i].seq, b->spans[i].n);
    return 0;
}
