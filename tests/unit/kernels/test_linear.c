#include "kern_test.h"

enum { LD_EXTRA = 3 };

struct problem {
    struct kern_matrix w;
    float *x;
    void *bias;
    float *y0; /* what y holds before an accumulating call */
    void *scratch;
    int m, ldx, ldy;
};

static void problem_init(struct problem *p, enum kern_dtype dtype, int m, int n, int k,
                         uint64_t seed)
{
    p->m = m;
    p->ldx = k + LD_EXTRA;
    p->ldy = n + LD_EXTRA;
    p->x = random_floats((size_t)m * (size_t)p->ldx, seed);
    p->y0 = random_floats((size_t)m * (size_t)p->ldy, seed + 1);
    p->w = (struct kern_matrix){.w = random_weights(dtype, (size_t)n * (size_t)k, seed + 2),
                                .dtype = dtype,
                                .n = n,
                                .k = k};
    p->bias = random_weights(dtype, (size_t)n, seed + 3);
    p->scratch = must_alloc(LINEAR_SCRATCH);
}

static void problem_release(struct problem *p)
{
    free(p->x);
    free(p->y0);
    free((void *)p->w.w);
    free(p->bias);
    free(p->scratch);
}

/* Rows [m0, m1), outputs [n0, n1) into a whole y. */
static void run_part(const struct kernels *t, struct problem *p, float *y, int m0, int m1, int n0,
                     int n1, bool plus)
{
    const float *x = p->x + (ptrdiff_t)m0 * p->ldx;
    size_t bytes = t->linear_x_bytes(m1 - m0, p->w.k);
    void *px = bytes ? must_alloc(bytes) : NULL;

    if (px)
        t->linear_x_prepare(px, x, p->ldx, 0, m1 - m0, p->w.k);
    t->linear(y + (ptrdiff_t)m0 * p->ldy, p->ldy, x, p->ldx, px, m1 - m0, &p->w, n0, n1,
              plus ? p->bias : NULL, plus, p->scratch, NULL);
    free(px);
}

static float *run(const struct kernels *t, struct problem *p, bool plus)
{
    size_t n = (size_t)p->m * (size_t)p->ldy;
    float *y = must_alloc(n * sizeof *y);

    memcpy(y, p->y0, n * sizeof *y);
    run_part(t, p, y, 0, p->m, 0, p->w.n, plus);
    return y;
}

static void check_against_reference(enum kern_dtype dtype, int m, int n, int k)
{
    struct problem p;

    problem_init(&p, dtype, m, n, k, (uint64_t)(m * 1000 + n * 7 + k));
    FOR_EACH_VARIANT(t)
    {
        for (int plus = 0; plus < 2; plus++) {
            float *want = run(reference_of(t), &p, plus);
            float *got = run(t, &p, plus);
            char what[96];

            snprintf(what, sizeof what, "%s dtype %d m %d n %d k %d plus %d", t->name, dtype, m, n,
                     k, plus);
            assert_same(what, got, want, (size_t)m * (size_t)p.ldy);
            free(want);
            free(got);
        }
    }
    problem_release(&p);
}

static void every_variant_gives_the_bits_of_the_reference(void **state)
{
    static const int ks[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 100, 257};
    static const int ns[] = {1, 2, 3, 4, 5, 7, 16, 19, 35};

    (void)state;
    for (enum kern_dtype dtype = KERN_F32; dtype <= KERN_BF16; dtype++)
        for (int m = 1; m <= 40; m++)
            check_against_reference(dtype, m, ns[m % 9], ks[(m * 5 + (int)dtype) % 13]);
}

static void every_tail_of_k_and_n_is_handled(void **state)
{
    (void)state;
    for (enum kern_dtype dtype = KERN_F32; dtype <= KERN_BF16; dtype++)
        for (int k = 1; k <= 70; k += dtype == KERN_BF16 ? 1 : 3)
            for (int m = 1; m <= 14; m += 13)
                check_against_reference(dtype, m, 1 + k % 21, k);
}

/* The B of adapters: k is their rank. */
static void short_rows_have_the_bits_of_the_reference(void **state)
{
    static const int ks[] = {1, 2, 7, 8, 16, 31, 32, 33}, ns[] = {1, 15, 16, 17, 32, 47};

    (void)state;
    for (int m = 1; m <= 32; m = m < 3 ? m + 1 : m + 29)
        for (size_t i = 0; i < sizeof ks / sizeof *ks * sizeof ns / sizeof *ns; i++)
            check_against_reference(KERN_BF16, m, ns[i % 6], ks[i / 6]);
}

static void long_rows_that_are_cut_into_blocks_keep_their_order(void **state)
{
    static const int ks[] = {768, 769, 1000, 1536, 1553, 2048, 3001, 8192};

    (void)state;
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        check_against_reference(KERN_BF16, 1 + (int)i % 3, 6, ks[i]);
        check_against_reference(KERN_BF16, 13 + (int)i, 6, ks[i]);
    }
    check_against_reference(KERN_F32, 17, 5, 1553);
    check_against_reference(KERN_F16, 17, 5, 1553);
}

static void many_rows_cross_the_borders_of_row_blocks(void **state)
{
    (void)state;
    check_against_reference(KERN_BF16, 203, 5, 1537);
    check_against_reference(KERN_BF16, 401, 3, 40);
    check_against_reference(KERN_F32, 197, 5, 800);
}

static void a_row_of_a_batch_has_the_bits_of_the_row_alone(void **state)
{
    struct problem p;

    (void)state;
    problem_init(&p, KERN_BF16, 40, 37, 1000, 11);
    FOR_EACH_VARIANT(t)
    {
        float *whole = run(t, &p, true);
        float *parts = must_alloc((size_t)p.m * (size_t)p.ldy * sizeof *parts);
        int step = 1;

        memcpy(parts, p.y0, (size_t)p.m * (size_t)p.ldy * sizeof *parts);
        for (int m0 = 0; m0 < p.m; m0 += step, step = step % 14 + 1) {
            step = m0 + step > p.m ? p.m - m0 : step;
            for (int n0 = 0, cut = 1; n0 < p.w.n; n0 += cut, cut = cut * 2 + 1) {
                cut = n0 + cut > p.w.n ? p.w.n - n0 : cut;
                run_part(t, &p, parts, m0, m0 + step, n0, n0 + cut, true);
            }
        }
        assert_same(t->name, parts, whole, (size_t)p.m * (size_t)p.ldy);
        free(whole);
        free(parts);
    }
    problem_release(&p);
}

static void set_weight(struct problem *p, size_t i, uint32_t f32, uint16_t bf16)
{
    if (p->w.dtype == KERN_F32)
        memcpy((float *)p->w.w + i, &f32, sizeof f32);
    else
        ((uint16_t *)p->w.w)[i] = bf16;
}

static void special_values_go_the_same_way_everywhere(void **state)
{
    static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x80000000, 0x00000001,
                                    0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                    0x1f800000, 0x9f800001, 0x00400000, 0x3f808000, 0x3f818000};
    enum { N_BITS = sizeof bits / sizeof *bits };

    (void)state;
    for (int way = 0; way < 4; way++)
        for (int m = 1; m <= 15; m += 14) {
            int which = way & 1, k = way & 2 ? 45 : 29;
            struct problem p;

            problem_init(&p, which ? KERN_BF16 : KERN_F32, m, N_BITS * 4, k, 77);
            for (int j = 0; j < p.w.n; j++) {
                size_t at = (size_t)(j * k) + (size_t)(j * 7 % k);
                float special;

                set_weight(&p, at, bits[j % N_BITS], (uint16_t)(bits[j % N_BITS] >> 16));
                memcpy(&special, &bits[j * 3 % N_BITS], sizeof special);
                if (j % 5 != 0 && m > 1)
                    p.x[(j % m) * p.ldx + j * 11 % k] = special;
            }
            FOR_EACH_VARIANT(t)
            {
                float *want = run(reference_of(t), &p, false);
                float *got = run(t, &p, false);

                assert_same(t->name, got, want, (size_t)m * (size_t)p.ldy);
                free(want);
                free(got);
            }
            problem_release(&p);
        }
}

/* Products and sums around the smallest normal number: flushed by bf16-1, kept by exact-1. */
static void check_denormal_sums(int k)
{
    struct problem p;
    uint64_t seed = 5;

    problem_init(&p, KERN_BF16, 14, 64, k, 3);
    for (int i = 0; i < 14 * p.ldx; i++)
        p.x[i] = ldexpf(random_float(&seed), -60 - (int)(next_random(&seed) % 20));
    for (int i = 0; i < 64 * k; i++)
        ((uint16_t *)p.w.w)[i] =
            (uint16_t)((next_random(&seed) & 0x807f) | (50 + next_random(&seed) % 20) << 7);
    FOR_EACH_VARIANT(t)
    {
        float *want = run(reference_of(t), &p, false);
        float *got = run(t, &p, false);

        assert_same(t->name, got, want, 14 * (size_t)p.ldy);
        free(want);
        free(got);
    }
    problem_release(&p);
}

static void denormal_sums_go_the_same_way_everywhere(void **state)
{
    (void)state;
    check_denormal_sums(70);
    check_denormal_sums(32);
}

static double weight_double(const struct kern_matrix *w, size_t i)
{
    float f;

    reference_of(kernels_by_name("ref"))->to_f32(&f, (const char *)w->w + i * 2, w->dtype, 1);
    return (double)f;
}

/* The error of a sum of k products is bounded by the chain's length (k/16 + 4 roundings) times the
 * sum of magnitudes; bf16-1 also rounds each activation to 8 bits (2^-9). */
static void the_reference_agrees_with_a_sum_in_double(void **state)
{
    struct problem p;

    (void)state;
    problem_init(&p, KERN_BF16, 3, 20, 576, 9);
    FOR_EACH_VARIANT(t)
    {
        float *y = run(t, &p, false);
        double unit = strcmp(t->numerics, "bf16-1") == 0 ? 0x1p-9 : 0;

        for (int r = 0; r < p.m; r++)
            for (int j = 0; j < p.w.n; j++) {
                double sum = 0;
                double magnitude = 0;

                for (int k = 0; k < p.w.k; k++) {
                    double v =
                        (double)p.x[r * p.ldx + k] * weight_double(&p.w, (size_t)(j * 576 + k));
                    sum += v;
                    magnitude += fabs(v);
                }
                assert_true(fabs((double)y[r * p.ldy + j] - sum) <=
                            magnitude * (unit + 40 * 0x1p-24));
            }
        free(y);
    }
    problem_release(&p);
}

static void a_known_product_comes_out(void **state)
{
    const float x[4] = {1, 2, 3, 4};
    const float w[8] = {1, 1, 1, 1, 0.5f, -1, 2, 0.25f};
    const float bias[2] = {100, -1};
    struct kern_matrix m = {.w = w, .dtype = KERN_F32, .n = 2, .k = 4};
    void *scratch = must_alloc(LINEAR_SCRATCH);

    (void)state;
    FOR_EACH_VARIANT(t)
    {
        float y[2] = {1, 1};

        t->linear(y, 2, x, 4, NULL, 1, &m, 0, 2, bias, true, scratch, NULL);
        assert_true(y[0] == 111.0f && y[1] == 5.5f);
        t->linear(y, 2, x, 4, NULL, 1, &m, 1, 2, NULL, false, scratch, NULL);
        assert_true(y[0] == 111.0f && y[1] == 5.5f);
    }
    free(scratch);
}

static bool lies_within(const char *at, const char *end, const struct kern_range *r, size_t offset)
{
    const char *from = (const char *)r->from + offset;

    return at >= from && at <= end && end == from + r->bytes;
}

/* The tiles of AVX-512 ask for other memory on the way. */
static void memory_asked_for_on_the_way_changes_nothing_and_ends(void **state)
{
    static const char memory[4096];
    const struct kern_range ranges[] = {{memory, 100}, {memory + 640, 64}, {memory + 1280, 1000}};
    struct problem p;

    (void)state;
    problem_init(&p, KERN_BF16, 13, 70, 200, 77);
    FOR_EACH_VARIANT(t)
    {
        struct kern_ahead ahead = {
            .ranges = ranges, .next = 1, .n = 3, .offset = 128, .after = memory};
        float *want = run(t, &p, false), *y = must_alloc((size_t)p.m * (size_t)p.ldy * sizeof *y);
        size_t bytes = t->linear_x_bytes(p.m, p.w.k);
        void *px = bytes ? must_alloc(bytes) : NULL;

        if (px)
            t->linear_x_prepare(px, p.x, p.ldx, 0, p.m, p.w.k);
        memcpy(y, p.y0, (size_t)p.m * (size_t)p.ldy * sizeof *y);
        for (int n = 0; n < p.w.n; n += 10) {
            t->linear(y, p.ldy, p.x, p.ldx, px, p.m, &p.w, n, n + 10, NULL, false, p.scratch,
                      &ahead);
            if (ahead.next > 1)
                assert_true(lies_within(ahead.at, ahead.end, &ranges[ahead.next - 1], 128));
        }
        assert_memory_equal(y, want, (size_t)p.m * (size_t)p.ldy * sizeof *y);
        assert_true(ahead.next == 1 || (ahead.next == 3 && ahead.at == ahead.end));
        if (strcmp(t->name, "avx512") == 0 || strcmp(t->name, "bf16") == 0)
            assert_int_equal(ahead.next, 3);
        free(px);
        free(want);
        free(y);
    }
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_bits_of_the_reference),
        cmocka_unit_test(every_tail_of_k_and_n_is_handled),
        cmocka_unit_test(short_rows_have_the_bits_of_the_reference),
        cmocka_unit_test(long_rows_that_are_cut_into_blocks_keep_their_order),
        cmocka_unit_test(many_rows_cross_the_borders_of_row_blocks),
        cmocka_unit_test(a_row_of_a_batch_has_the_bits_of_the_row_alone),
        cmocka_unit_test(special_values_go_the_same_way_everywhere),
        cmocka_unit_test(denormal_sums_go_the_same_way_everywhere),
        cmocka_unit_test(the_reference_agrees_with_a_sum_in_double),
        cmocka_unit_test(a_known_product_comes_out),
        cmocka_unit_test(memory_asked_for_on_the_way_changes_nothing_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
