/* bench_tokenize [DIR] [MB]: encode and decode speed of a tokenizer on one core, in MB/s.
 *
 * The text is made here, from a fixed seed: a third each of prose (words of a Zipf-like
 * distribution over 60,000), code, and text in other scripts. No line occurs twice. Prints `name
 * value` lines: the median of five runs by the wall clock (_mbs) and by the time of the core
 * (_core_mbs). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "series.h"
#include "text/tokenizer.h"

enum { RUNS = 5, WORDS = 60000 };

struct source {
    uint64_t x;
    unsigned line;
};

static uint32_t pick(struct source *s, uint32_t n)
{
    s->x ^= s->x << 13;
    s->x ^= s->x >> 7;
    s->x ^= s->x << 17;
    return (uint32_t)(s->x >> 32) % n;
}

/* Rank r with probability about 1 / (r + 1): a uniform number of bits, then a uniform number of
 * them. */
static uint32_t pick_zipf(struct source *s)
{
    uint32_t bits = pick(s, 17), r = pick(s, 1u << bits) + (1u << bits) - 1;

    return r < WORDS ? r : r % WORDS;
}

/* The word of a rank: syllables drawn from the rank itself, so that the same rank is the same word.
 */
static void add_word(struct buf *b, uint32_t rank)
{
    static const char *const onset[] = {"b", "c",  "d",  "f",  "g",  "h",  "l",  "m",  "n",   "p",
                                        "r", "s",  "t",  "v",  "w",  "st", "tr", "ch", "th",  "pl",
                                        "",  "gr", "sh", "br", "cr", "sp", "qu", "fl", "str", "k"};
    static const char *const rest[] = {"a",  "e",  "i",   "o",  "u",   "er", "in",
                                       "on", "an", "ing", "ed", "ion", "al", "en",
                                       "or", "is", "at",  "es", "ent", "ou", "ea"};

    rank = rank * 2654435761u >> (rank < 500 ? 20 : 8);
    do {
        buf_add_str(b, onset[rank % 30]);
        rank /= 30;
        buf_add_str(b, rest[rank % 21]);
        rank /= 21;
    } while (rank > 0);
}

static void add_prose(struct buf *b, struct source *s)
{
    for (uint32_t n = 8 + pick(s, 12); n > 0; n--) {
        add_word(b, pick_zipf(s));
        buf_add_str(b, pick(s, 9) == 0 ? ", " : " ");
    }
    buf_printf(b, "in %u.\n", s->line);
}

static void add_code(struct buf *b, struct source *s)
{
    static const char *const forms[] = {"if (",  "for (int ", "return ", "static int ",
                                        "self.", "    x->",   "import ", "def "};

    for (uint32_t n = pick(s, 5); n > 0; n--)
        buf_add_str(b, "    ");
    buf_add_str(b, forms[pick(s, 8)]);
    add_word(b, pick_zipf(s));
    buf_add_char(b, '_');
    add_word(b, pick_zipf(s));
    buf_printf(b, " = %s[%u] + 0x%x; // ", pick(s, 2) ? "buf" : "(size_t)n", s->line,
               pick(s, 1u << 20));
    add_word(b, pick_zipf(s));
    buf_add_str(b, pick(s, 3) ? "\n" : "\n\n");
}

static void add_code_point(struct buf *b, uint32_t cp)
{
    if (cp < 0x800) {
        buf_add_char(b, (char)(0xc0 | cp >> 6));
    } else if (cp < 0x10000) {
        buf_add_char(b, (char)(0xe0 | cp >> 12));
        buf_add_char(b, (char)(0x80 | (cp >> 6 & 63)));
    } else {
        buf_add_char(b, (char)(0xf0 | cp >> 18));
        buf_add_char(b, (char)(0x80 | (cp >> 12 & 63)));
        buf_add_char(b, (char)(0x80 | (cp >> 6 & 63)));
    }
    buf_add_char(b, (char)(0x80 | (cp & 63)));
}

static void add_script(struct buf *b, struct source *s)
{
    static const struct {
        uint32_t first, n, word;
    } scripts[] = {{0x430, 32, 7},    {0x3b1, 24, 6},  {0x5d0, 27, 5},    {0x627, 36, 5},
                   {0x4e00, 3000, 9}, {0x3042, 80, 8}, {0xac00, 2000, 4}, {0x905, 50, 6},
                   {0xe0, 31, 6},     {0x1f600, 60, 1}};
    uint32_t k = pick(s, 10);

    for (uint32_t n = 6 + pick(s, 10); n > 0; n--) {
        for (uint32_t m = 1 + pick(s, scripts[k].word); m > 0; m--)
            add_code_point(b, scripts[k].first + pick(s, scripts[k].n));
        buf_add_char(b, ' ');
    }
    buf_printf(b, "%u\n", s->line);
}

static void make_text(struct buf *b, size_t bytes)
{
    static void (*const makers[])(struct buf *, struct source *) = {add_prose, add_code,
                                                                    add_script};
    struct source s = {.x = 88172645463325252u};

    for (size_t part = 0; b->len < bytes && !b->failed; part++) {
        size_t end = b->len + 4096 + pick(&s, 4096);

        for (; b->len < end && !b->failed; s.line++)
            makers[part % 3](b, &s);
    }
}

struct times {
    struct series wall_ms, core_ms;
};

static double core_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void print_speed(const char *what, struct times *t, size_t bytes)
{
    printf("%s_mbs %.1f\n%s_core_mbs %.1f\n", what, (double)bytes / 1e3 / median(&t->wall_ms), what,
           (double)bytes / 1e3 / median(&t->core_ms));
}

static int time_encode(const struct tokenizer *t, const struct buf *text, struct token_list *ids,
                       struct err *e)
{
    struct times times = {.wall_ms.n = RUNS, .core_ms.n = RUNS};

    for (int i = 0; i < RUNS; i++) {
        int64_t start = clock_mono_ns();
        double core = core_ms();

        token_list_reset(ids);
        if (tokenizer_encode(t, buf_str(text), text->len, 0, ids, e) < 0)
            return -1;
        times.wall_ms.v[i] = clock_ms_since(start);
        times.core_ms.v[i] = core_ms() - core;
    }
    print_speed("tokenize", &times, text->len);
    printf("tokens %zu\n", ids->n);
    return 0;
}

static void time_decode(const struct tokenizer *t, const struct token_list *ids)
{
    struct buf back = {0};
    struct times times = {.wall_ms.n = RUNS, .core_ms.n = RUNS};

    for (int i = 0; i < RUNS; i++) {
        int64_t start = clock_mono_ns();
        double core = core_ms();

        buf_reset(&back);
        tokenizer_decode(t, ids->ids, ids->n, 0, &back);
        times.wall_ms.v[i] = clock_ms_since(start);
        times.core_ms.v[i] = core_ms() - core;
    }
    print_speed("decode", &times, back.len);
    buf_release(&back);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "tests/vectors/models/tiny-llama";
    size_t mb = argc > 2 ? strtoul(argv[2], NULL, 10) : 10;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = -1;
    struct err e = {0};
    struct token_list ids = {0};
    struct buf text = {0};
    int64_t start = clock_mono_ns();
    struct tokenizer *t = tokenizer_open(fd, &e);

    if (t) {
        printf("open_ms %.0f\n", clock_ms_since(start));
        make_text(&text, mb * 1000000);
        rc = time_encode(t, &text, &ids, &e);
        if (rc == 0)
            time_decode(t, &ids);
    }
    if (rc < 0)
        fprintf(stderr, "bench_tokenize: %s: %s\n", dir, e.msg);
    if (fd >= 0)
        close(fd);
    tokenizer_unref(t);
    token_list_release(&ids);
    buf_release(&text);
    return rc < 0;
}
