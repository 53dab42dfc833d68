#include "kern_test.h"

enum { MAX_PAGES = 6, LD_EXTRA = 5 };

/* A sequence of `len` positions in pages; slots never written hold NaN, so that whoever reads one
 * shows. */
struct sequence {
    float *k[MAX_PAGES], *v[MAX_PAGES];
    float *keys, *values; /* [len][head_dim] */
    int len, head_dim;
};

static void sequence_init(struct sequence *s, const struct kernels *t, int len, int head_dim)
{
    size_t n = (size_t)KV_BLOCK * (size_t)head_dim;

    *s = (struct sequence){.len = len, .head_dim = head_dim};
    s->keys = random_floats((size_t)(len * head_dim), 21);
    s->values = random_floats((size_t)(len * head_dim), 22);
    for (int b = 0; b < MAX_PAGES; b++) {
        s->k[b] = must_alloc(n * sizeof(float));
        s->v[b] = must_alloc(n * sizeof(float));
        memset(s->k[b], 0xff, n * sizeof(float));
        memset(s->v[b], 0xff, n * sizeof(float));
    }
    for (int p = 0; p < len; p++)
        t->kv_store(s->k[p / KV_BLOCK], s->v[p / KV_BLOCK], p % KV_BLOCK, s->keys + p * head_dim,
                    s->values + p * head_dim, head_dim);
}

static void sequence_release(struct sequence *s)
{
    for (int b = 0; b < MAX_PAGES; b++) {
        free(s->k[b]);
        free(s->v[b]);
    }
    free(s->keys);
    free(s->values);
}

static void attend(const struct kernels *t, const struct sequence *s, float *out, const float *q,
                   int ld, int rows, int pos0, int group)
{
    void *scratch = must_alloc(t->attention_scratch(rows, group, s->head_dim));

    t->attention(out, ld, q, ld, rows, pos0, group, s->head_dim, (const float *const *)s->k,
                 (const float *const *)s->v, 0.125f, scratch);
    free(scratch);
}

static void check_shape(const struct kernels *t, int rows, int pos0, int group, int head_dim)
{
    struct sequence s;
    int ld = group * head_dim + LD_EXTRA;
    float *q = random_floats((size_t)(rows * ld), 23);
    float *want = random_floats((size_t)(rows * ld), 24);
    float *got = random_floats((size_t)(rows * ld), 24);
    char what[96];

    sequence_init(&s, t, pos0 + rows, head_dim);
    attend(reference_of(t), &s, want, q, ld, rows, pos0, group);
    attend(t, &s, got, q, ld, rows, pos0, group);
    snprintf(what, sizeof what, "%s rows %d pos %d group %d dim %d", t->name, rows, pos0, group,
             head_dim);
    assert_same(what, got, want, (size_t)(rows * ld));
    sequence_release(&s);
    free(q);
    free(want);
    free(got);
}

static void every_variant_has_the_bits_of_the_reference(void **state)
{
    static const int dims[] = {64, 16, 8, 24, 80, 96, 128, 40};

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int i = 0; i < 60; i++)
        check_shape(t, 1 + i % 13, i * 5 % 200, 1 + i % 5, dims[i % 8]);
}

static void tiles_that_cross_the_border_of_a_page_are_right(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    for (int pos = 55; pos < 67; pos++)
        for (int group = 1; group <= 3; group++)
            check_shape(t, 9, pos, group, 32);
}

static void a_row_has_the_bits_it_has_alone(void **state)
{
    enum { ROWS = 70, POS = 90, GROUP = 3, DIM = 64, LD = GROUP * DIM };
    float *q = random_floats(ROWS * LD, 31);

    (void)state;
    FOR_EACH_VARIANT(t)
    {
        struct sequence s;
        float *whole = random_floats(ROWS * LD, 32);
        float *alone = random_floats(ROWS * LD, 33);

        sequence_init(&s, t, POS + ROWS, DIM);
        attend(t, &s, whole, q, LD, ROWS, POS, GROUP);
        for (int r = 0; r < ROWS; r++)
            attend(t, &s, alone + r * LD, q + r * LD, LD, 1, POS + r, GROUP);
        assert_same(t->name, whole, alone, ROWS * LD);
        sequence_release(&s);
        free(whole);
        free(alone);
    }
    free(q);
}

/* A later row's value may be infinite: earlier rows must not feel it. */
static void no_row_touches_a_later_position(void **state)
{
    enum { ROWS = 17, DIM = 64 };
    float *q = random_floats(ROWS * DIM, 41);

    (void)state;
    FOR_EACH_VARIANT(t)
    {
        struct sequence s;
        float out[ROWS * DIM];

        sequence_init(&s, t, ROWS, DIM);
        for (int d = 0; d < DIM; d++)
            s.v[0][(ROWS - 1) * DIM + d] = NAN;
        attend(t, &s, out, q, DIM, ROWS, 0, 1);
        for (int i = 0; i < ROWS * DIM; i++)
            assert_int_equal(!isnan(out[i]), i < (ROWS - 1) * DIM);
        sequence_release(&s);
    }
    free(q);
}

static void check_row_in_double(const struct sequence *s, const float *q, const float *out, int pos)
{
    int D = s->head_dim;
    double *p = must_alloc((size_t)(pos + 1) * sizeof *p);
    double max = -INFINITY;
    double sum = 0;

    for (int j = 0; j <= pos; j++) {
        p[j] = 0;
        for (int d = 0; d < D; d++)
            p[j] += (double)q[d] * (double)s->keys[j * D + d] * 0.125;
        max = p[j] > max ? p[j] : max;
    }
    for (int j = 0; j <= pos; j++)
        sum += p[j] = exp(p[j] - max);
    for (int d = 0; d < D; d++) {
        double want = 0;

        for (int j = 0; j <= pos; j++)
            want += p[j] * (double)s->values[j * D + d] / sum;
        /* scores carry D roundings of terms up to 0.5 each, weights and values some hundred more */
        assert_true(fabs((double)out[d] - want) < 2e-5);
    }
    free(p);
}

static void it_is_softmax_attention(void **state)
{
    enum { ROWS = 8, POS = 190, DIM = 64 };
    float *q = random_floats(ROWS * DIM, 51);

    (void)state;
    FOR_EACH_VARIANT(t)
    {
        struct sequence s;
        float out[ROWS * DIM];

        sequence_init(&s, t, POS + ROWS, DIM);
        attend(t, &s, out, q, DIM, ROWS, POS, 1);
        for (int r = 0; r < ROWS; r++)
            check_row_in_double(&s, q + r * DIM, out + r * DIM, POS + r);
        sequence_release(&s);
    }
    free(q);
}

static void extreme_scores_stay_finite_and_equal(void **state)
{
    enum { ROWS = 4, DIM = 16, POS = 100 };

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int kind = 0; kind < 3; kind++) {
        struct sequence s;
        float *q = random_floats(ROWS * DIM, 61);
        float want[ROWS * DIM];
        float got[ROWS * DIM];

        for (int i = 0; i < ROWS * DIM; i++)
            q[i] *= kind == 0 ? 1e4f : kind == 1 ? 1e-38f : 1e38f;
        sequence_init(&s, t, POS + ROWS, DIM);
        attend(reference_of(t), &s, want, q, DIM, ROWS, POS, 1);
        attend(t, &s, got, q, DIM, ROWS, POS, 1);
        assert_same(t->name, got, want, ROWS * DIM);
        for (int i = 0; i < ROWS * DIM && kind < 2; i++)
            assert_true(isfinite(got[i]));
        sequence_release(&s);
        free(q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_has_the_bits_of_the_reference),
        cmocka_unit_test(tiles_that_cross_the_border_of_a_page_are_right),
        cmocka_unit_test(a_row_has_the_bits_it_has_alone),
        cmocka_unit_test(no_row_touches_a_later_position),
        cmocka_unit_test(it_is_softmax_attention),
        cmocka_unit_test(extreme_scores_stay_finite_and_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
