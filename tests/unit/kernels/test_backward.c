/* The backward kernels: bits of the reference in every variant, formulas against double. */
#include "kern_test.h"

#include "kernels/backward.h"

/* The exact backward tables, each once. */
static const char *const owners[] = {"ref", "avx2", "avx512"};

#define FOR_EACH_BACK(t)                                                                        \
    for (size_t bi_ = 0; bi_ < sizeof owners / sizeof *owners; bi_++)                           \
        for (const struct kernels_back *t = kernels_by_name(owners[bi_])                        \
                                                ? kernels_back_of(kernels_by_name(owners[bi_])) \
                                                : NULL;                                         \
             t; t = NULL)

static const struct kernels_back *ref(void)
{
    return kernels_back_of(kernels_by_name("ref"));
}

/* ---- chain ---- */

struct shape {
    int m, n, steps;
};

static const struct shape shapes[] = {
    {1, 1, 1},    {6, 64, 16},   {7, 65, 3},   {5, 15, 300},  {13, 130, 257},
    {200, 70, 5}, {193, 33, 20}, {64, 64, 64}, {2, 200, 513}, {600, 40, 70},
};

static float *run_chain(const struct kernels_back *t, struct chain c, const float *start, size_t n)
{
    float *to = must_alloc(n * sizeof *to);
    void *scratch = must_alloc(CHAIN_SCRATCH);

    memcpy(to, start, n * sizeof *to);
    c.c = to;
    t->chain(&c, scratch);
    free(scratch);
    return to;
}

/* panels: rows of B, and of A read down its columns, are as far apart as those of a block of 64. */
static void check_chain(const struct kernels_back *t, struct shape s, enum kern_dtype dtype,
                        bool columns, bool clear, bool panels)
{
    ptrdiff_t ldb = panels ? KV_BLOCK : s.n + 3, ldc = s.n + 5;
    ptrdiff_t lda = !columns ? s.steps + 2 : panels ? KV_BLOCK : s.m + 2;
    size_t n = (size_t)(s.m * ldc);
    float *a = random_floats((size_t)(lda * (columns ? s.steps : s.m)), 1);
    void *b = random_weights(dtype, (size_t)(ldb * (s.steps - 1) + s.n), 2);
    float *start = random_floats(n, 3);
    struct chain c = {.ldc = ldc,
                      .a = a,
                      .a_row = columns ? 1 : lda,
                      .a_step = columns ? lda : 1,
                      .b = b,
                      .b_dtype = dtype,
                      .ldb = ldb,
                      .m = s.m,
                      .n = s.n,
                      .steps = s.steps,
                      .clear = clear};
    float *want = run_chain(ref(), c, start, n), *got = run_chain(t, c, start, n);
    char what[96];

    snprintf(what, sizeof what, "%s dtype %d m %d n %d steps %d columns %d clear %d", t->name,
             dtype, s.m, s.n, s.steps, columns, clear);
    assert_same(what, got, want, n);
    free(a);
    free(b);
    free(start);
    free(want);
    free(got);
}

static void chains_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    FOR_EACH_BACK(t)
    {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
                for (int way = 0; way < 4; way++)
                    check_chain(t, shapes[i], (enum kern_dtype)dtype, way & 1, way & 2, false);
            }
    }
}

static void chains_of_blocks_have_the_bits_of_the_reference(void **state)
{
    static const struct shape blocks[] = {{64, 64, 64}, {16, 16, 64}, {16, 32, 64}, {16, 48, 64},
                                          {9, 31, 64},  {64, 64, 17}, {6, 64, 128}, {33, 16, 300}};

    (void)state;
    FOR_EACH_BACK(t)
    {
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
                for (int way = 0; way < 4; way++)
                    check_chain(t, blocks[i], (enum kern_dtype)dtype, way & 1, way & 2, true);
            }
    }
}

/* Three segments of odd lengths, and none. */
static void check_pairs(const struct kernels_back *t, struct shape s, enum kern_dtype dtype,
                        bool columns, bool clear)
{
    const struct kernels_back *want_of = kernels_back_of(kernels_by_name("bf16-ref"));
    ptrdiff_t ldb = s.n + 3, lda = columns ? s.m + 2 : s.steps + 2;
    size_t n = (size_t)(s.m * s.n);
    const int ends[] = {s.steps / 3, s.steps / 3, s.steps / 2, s.steps};
    float *a = random_floats((size_t)(lda * (columns ? s.steps : s.m)), 1);
    void *b = random_weights(dtype, (size_t)(ldb * s.steps), 2);
    float *want = random_floats(n, 3), *got = random_floats(n, 3);
    void *scratch = must_alloc(CHAIN_SCRATCH);
    struct chain c = {.c = want,
                      .ldc = s.n,
                      .a = a,
                      .a_row = columns ? 1 : lda,
                      .a_step = columns ? lda : 1,
                      .b = b,
                      .b_dtype = dtype,
                      .ldb = ldb,
                      .m = s.m,
                      .n = s.n,
                      .steps = s.steps,
                      .clear = clear,
                      .ends = columns ? ends : NULL};
    char what[96];

    a[0] = 0x1p-130f; /* denormal: read as zero */
    want_of->chain_pairs(&c, scratch);
    c.c = got;
    t->chain_pairs(&c, scratch);
    snprintf(what, sizeof what, "%s pairs, dtype %d m %d n %d steps %d columns %d clear %d",
             t->name, dtype, s.m, s.n, s.steps, columns, clear);
    assert_same(what, got, want, n);
    free(a);
    free(b);
    free(want);
    free(got);
    free(scratch);
}

static void chains_of_pairs_have_the_bits_of_the_reference(void **state)
{
    const struct kernels *k = kernels_by_name("bf16");

    (void)state;
    for (size_t i = 0; k && i < sizeof shapes / sizeof *shapes; i++) {
        for (int clear = 0; clear < 2; clear++) {
            check_pairs(kernels_back_of(k), shapes[i], KERN_BF16, false, clear);
            check_pairs(kernels_back_of(k), shapes[i], KERN_F32, false, clear);
            check_pairs(kernels_back_of(k), shapes[i], KERN_F32, true, clear);
        }
    }
}

/* A chain of one element. */
static struct chain one_element(float *c, const float *a, const float *b, int steps)
{
    return (struct chain){.c = c,
                          .ldc = 1,
                          .a = a,
                          .a_row = steps,
                          .a_step = 1,
                          .b = b,
                          .ldb = 1,
                          .m = 1,
                          .n = 1,
                          .steps = steps};
}

static void a_chain_that_clears_starts_from_zero(void **state)
{
    const struct kernels_back *pairs = kernels_back_of(kernels_by_name("bf16-ref"));
    const float a[2] = {2, 3}, b[2] = {5, 7};
    float c = NAN;
    struct chain p = one_element(&c, a, b, 2);

    (void)state;
    p.clear = true;
    ref()->chain(&p, NULL);
    assert_true(c == 31);
    pairs->chain_pairs(&p, NULL);
    assert_true(c == 31);
}

/* Three steps by hand: the pair's odd product first, then the even one, then the third step. A sum
 * of 2^24 + 1 is lost, 2^24 + 2 is not. */
static void the_odd_step_of_a_pair_comes_first(void **state)
{
    static const char *const names[] = {"bf16-ref", "bf16"};
    const float a[3] = {1, 1, 1}, b[3] = {1, 0x1p24f, 1};
    void *scratch = must_alloc(CHAIN_SCRATCH);

    (void)state;
    for (int i = 0; i < 2 && kernels_by_name(names[i]); i++) {
        float c = 1;
        struct chain p = one_element(&c, a, b, 3);

        kernels_back_of(kernels_by_name(names[i]))->chain_pairs(&p, scratch);
        assert_true(c == 0x1p24f); /* (1 + 2^24) + 1 + 1, each rounded to even */
    }
    free(scratch);
}

/* One element by hand: 1000 + 2*3 + 4*5, each step rounded once. */
static void a_chain_goes_on_from_what_is_there(void **state)
{
    const float a[2] = {2, 4}, b[2] = {3, 5};
    void *scratch = must_alloc(CHAIN_SCRATCH);

    (void)state;
    FOR_EACH_BACK(t)
    {
        float whole = 1000, cut = 1000;
        struct chain c = one_element(&whole, a, b, 2);

        t->chain(&c, scratch);
        assert_true(whole == 1026);
        c.c = &cut;
        c.steps = 1;
        t->chain(&c, scratch);
        c.a++;
        c.b = b + 1;
        t->chain(&c, scratch);
        assert_true(cut == whole);
    }
    free(scratch);
}

/* ---- rmsnorm ---- */

static void rmsnorm_has_the_bits_of_the_reference(void **state)
{
    enum { T = 5, C = 83 };
    float *dy = random_floats(T * C, 1), *x = random_floats(T * C, 2),
          *dx0 = random_floats(T * C, 3);

    (void)state;
    FOR_EACH_BACK(t)
    {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            void *w = random_weights(KERN_BF16, C, 4);
            float want[T * C], got[T * C], r_want[T], r_got[T], dw_want[C], dw_got[C];

            memcpy(want, dx0, sizeof want);
            memcpy(got, dx0, sizeof got);
            fill(dw_want, C, 5);
            fill(dw_got, C, 5);
            ref()->rmsnorm(want, C, dy, C, x, C, w, KERN_BF16, T, C, 1e-5f, r_want, accumulate);
            t->rmsnorm(got, C, dy, C, x, C, w, KERN_BF16, T, C, 1e-5f, r_got, accumulate);
            assert_same(t->name, got, want, T * C);
            assert_same(t->name, r_got, r_want, T);
            ref()->rmsnorm_weight(dw_want, dy, C, x, C, r_want, T, C);
            t->rmsnorm_weight(dw_got, dy, C, x, C, r_want, T, C);
            assert_same(t->name, dw_got, dw_want, C);
            free(w);
        }
    }
    free(dy);
    free(x);
    free(dx0);
}

/* sum of dy y in double, of row x moved by h along one element. */
static double norm_loss(const float *dy, const float *x, const float *w, int n, double eps, int at,
                        double h)
{
    double square = 0, sum = 0;

    for (int i = 0; i < n; i++) {
        double v = (double)x[i] + (i == at ? h : 0);

        square += v * v;
    }
    for (int i = 0; i < n; i++)
        sum += (double)dy[i] * ((double)x[i] + (i == at ? h : 0)) * (double)w[i];
    return sum / sqrt(square / n + eps);
}

static void rmsnorm_agrees_with_finite_differences(void **state)
{
    enum { C = 24 };
    float *dy = random_floats(C, 1), *x = random_floats(C, 2), *w = random_floats(C, 3);
    const double h = 1e-5;

    (void)state;
    FOR_EACH_BACK(t)
    {
        float dx[C], r;

        t->rmsnorm(dx, C, dy, C, x, C, w, KERN_F32, 1, C, 1e-5f, &r, false);
        for (int i = 0; i < C; i++) {
            double d = (norm_loss(dy, x, w, C, 1e-5, i, h) - norm_loss(dy, x, w, C, 1e-5, i, -h)) /
                       (2 * h);

            assert_true(fabs((double)dx[i] - d) < 1e-4);
        }
    }
    free(dy);
    free(x);
    free(w);
}

/* ---- elementwise ---- */

static void swiglu_has_the_bits_of_the_reference(void **state)
{
    enum { N = 77 };
    float *dy = random_floats(N, 1), *gate = random_floats(N, 2), *up = random_floats(N, 3);

    (void)state;
    gate[3] = 200, gate[4] = -200, gate[5] = -80;
    FOR_EACH_BACK(t)
    {
        float g_want[N], u_want[N], g_got[N], u_got[N];

        ref()->swiglu(g_want, u_want, dy, gate, up, N);
        memcpy(g_got, dy, sizeof g_got); /* in place of dy */
        t->swiglu(g_got, u_got, g_got, gate, up, N);
        assert_same(t->name, g_got, g_want, N);
        assert_same(t->name, u_got, u_want, N);
        for (int i = 0; i < N; i++) {
            double x = gate[i], s = 1 / (1 + exp(-x)), d = s + x * s * (1 - s);

            assert_true(fabs((double)g_got[i] - (double)dy[i] * (double)up[i] * d) < 1e-5);
            assert_true(fabs((double)u_got[i] - (double)dy[i] * x * s) <= 1e-5 * (1 + fabs(x)));
        }
    }
    free(dy);
    free(gate);
    free(up);
}

static void softmax_has_the_bits_of_the_reference(void **state)
{
    enum { N = 83 };
    float *x = random_floats(N, 1);

    (void)state;
    FOR_EACH_BACK(t)
    {
        float want[N], got[N];

        memcpy(want, x, sizeof want);
        memcpy(got, x, sizeof got);
        ref()->softmax(want, N, 0.7f, 3, 0.01f, -2);
        t->softmax(got, N, 0.7f, 3, 0.01f, -2);
        assert_same(t->name, got, want, N);
        for (int i = 0; i < N; i++)
            assert_true(fabs((double)got[i] - 2 * exp((double)x[i] / (double)0.7f - 3) * 0.01) <
                        1e-6);
        ref()->scale(want, N, 0.3f);
        t->scale(got, N, 0.3f);
        assert_same(t->name, got, want, N);
    }
    free(x);
}

static void dots_have_the_bits_of_the_forward_product(void **state)
{
    enum { LONGEST = 67 };
    float a[LONGEST], b[LONGEST], want;

    (void)state;
    fill(a, LONGEST, 7);
    fill(b, LONGEST, 8);
    FOR_EACH_BACK(t)
    {
        for (int n = 1; n <= LONGEST; n += n < 17 ? 1 : 25) {
            struct kern_matrix w = {.w = b, .dtype = KERN_F32, .n = 1, .k = n};
            float got = t->dot(a, b, n);

            kernels_by_name("ref")->linear(&want, 1, a, n, NULL, 1, &w, 0, 1, NULL, false, NULL,
                                           NULL);
            assert_same(t->name, &got, &want, 1);
        }
    }
}

/* A block of queries against the keys that lie before its own, and then against its own: what the
 * rows do not see is NaN. */
struct attended {
    float s[2][KV_BLOCK * KV_BLOCK], dp[2][KV_BLOCK * KV_BLOCK], stats[4 * KV_BLOCK];
};

static void attend(const struct kernels_back *t, int rows, int keys, struct attended *r)
{
    struct attention_tile before = {.s = r->s[0],
                                    .dp = r->dp[0],
                                    .rows = rows,
                                    .keys = KV_BLOCK,
                                    .scale = 0.25f,
                                    .stats = r->stats,
                                    .ld = 4};
    struct attention_tile own = before;

    own.s = r->s[1];
    own.dp = r->dp[1];
    own.keys = keys;
    fill(r->s[0], 2 * KV_BLOCK * KV_BLOCK, 7);
    fill(r->dp[0], 2 * KV_BLOCK * KV_BLOCK, 8);
    for (int i = 0; i < rows; i++) {
        for (int j = keys + i; j < KV_BLOCK; j++)
            own.s[i * KV_BLOCK + j] = own.dp[i * KV_BLOCK + j] = NAN;
        memcpy(r->stats + (ptrdiff_t)i * 4, (const float[]){-INFINITY, 0, 0.3f, 7},
               4 * sizeof(float));
    }
    t->attention_stats(&before);
    t->attention_stats(&own);
    for (int i = 0; i < rows; i++)
        r->stats[i * 4 + 1] = 1 / r->stats[i * 4 + 1];
    t->attention(&before);
    t->attention(&own);
}

static void attention_has_the_bits_of_the_reference(void **state)
{
    struct attended *want = must_alloc(sizeof *want), *got = must_alloc(sizeof *got);

    (void)state;
    FOR_EACH_BACK(t)
    {
        for (int keys = 1; keys <= KV_BLOCK; keys += 21) {
            int rows = keys == 1 ? KV_BLOCK : 37;
            size_t n = (size_t)rows * KV_BLOCK;

            attend(ref(), rows, keys, want);
            attend(t, rows, keys, got);
            assert_same(t->name, got->stats, want->stats, (size_t)rows * 4);
            for (int i = 0; i < 2; i++) {
                assert_same(t->name, got->s[i], want->s[i], n);
                assert_same(t->name, got->dp[i], want->dp[i], n);
            }
            assert_true(keys == KV_BLOCK || got->s[1][keys] == 0);
            for (int i = 0; i < rows; i++) {
                double sum = 0;

                for (int j = 0; j < KV_BLOCK; j++)
                    sum += (double)(got->s[0][i * KV_BLOCK + j] + got->s[1][i * KV_BLOCK + j]);
                assert_true(fabs(sum - 1) < 1e-5);
            }
        }
    }
    free(want);
    free(got);
}

/* ---- short convolution ---- */

enum { ROWS = 7, H = 37, K = 3 };

struct conv_result {
    float d[ROWS * 3 * H], taps[H * K], bias[H];
};

static void run_conv(const struct kernels_back *t, const float *dz, const float *bcx,
                     const float *taps, const float *bias, int cut, struct conv_result *r)
{
    struct conv_back c = {.d = r->d,
                          .ldd = 3 * H,
                          .dz = dz,
                          .lddz = H,
                          .bcx = bcx,
                          .ldb = 3 * H,
                          .rows = ROWS,
                          .H = H,
                          .K = K,
                          .taps = taps,
                          .bias = bias,
                          .d_taps = r->taps,
                          .d_bias = r->bias};

    fill(r->taps, H * K, 9);
    fill(r->bias, H, 10);
    t->short_conv(&c, 0, cut);
    t->short_conv(&c, cut, H);
}

/* sum of dz z in double with element `at` of bcx moved by h. */
static double conv_loss(const float *dz, const float *bcx, const float *taps, const float *bias,
                        int at, double h)
{
    double sum = 0;

#define BCX(t, i) ((double)bcx[(t)*3 * H + (i)] + ((t)*3 * H + (i) == at ? h : 0))
    for (int t = 0; t < ROWS; t++)
        for (int c = 0; c < H; c++) {
            double z = (double)bias[c];

            for (int j = 0; j < K; j++)
                if (t - (K - 1) + j >= 0)
                    z += (double)taps[c * K + j] * BCX(t - (K - 1) + j, c) *
                         BCX(t - (K - 1) + j, 2 * H + c);
            sum += (double)dz[t * H + c] * z * BCX(t, H + c);
        }
#undef BCX
    return sum;
}

static void short_conv_has_the_bits_of_the_reference_and_its_derivative(void **state)
{
    float *dz = random_floats(ROWS * H, 1), *bcx = random_floats(ROWS * 3 * H, 2);
    float *taps = random_floats(H * K, 3), *bias = random_floats(H, 4);
    struct conv_result *want = must_alloc(sizeof *want), *got = must_alloc(sizeof *got);

    (void)state;
    run_conv(ref(), dz, bcx, taps, bias, H, want);
    for (int i = 0; i < ROWS * 3 * H; i += 11) {
        double d =
            (conv_loss(dz, bcx, taps, bias, i, 1e-4) - conv_loss(dz, bcx, taps, bias, i, -1e-4)) /
            2e-4;

        assert_true(fabs((double)want->d[i] - d) < 1e-3);
    }
    FOR_EACH_BACK(t)
    {
        run_conv(t, dz, bcx, taps, bias, 19, got);
        assert_same(t->name, got->d, want->d, ROWS * 3 * H);
        assert_same(t->name, got->taps, want->taps, H * K);
        assert_same(t->name, got->bias, want->bias, H);
    }
    free(dz);
    free(bcx);
    free(taps);
    free(bias);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_have_the_bits_of_the_reference),
        cmocka_unit_test(chains_of_blocks_have_the_bits_of_the_reference),
        cmocka_unit_test(a_chain_goes_on_from_what_is_there),
        cmocka_unit_test(a_chain_that_clears_starts_from_zero),
        cmocka_unit_test(chains_of_pairs_have_the_bits_of_the_reference),
        cmocka_unit_test(the_odd_step_of_a_pair_comes_first),
        cmocka_unit_test(rmsnorm_has_the_bits_of_the_reference),
        cmocka_unit_test(rmsnorm_agrees_with_finite_differences),
        cmocka_unit_test(swiglu_has_the_bits_of_the_reference),
        cmocka_unit_test(softmax_has_the_bits_of_the_reference),
        cmocka_unit_test(dots_have_the_bits_of_the_forward_product),
        cmocka_unit_test(attention_has_the_bits_of_the_reference),
        cmocka_unit_test(short_conv_has_the_bits_of_the_reference_and_its_derivative),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
