#include "tensor/gguf_tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "tensor/gguf_arch.h"
#include "tensor/st_index.h"

/* tokenizer.ggml.token_type */
enum { TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

#define WORDS_BEFORE_DIGITS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define WORDS_AFTER_DIGITS  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct style {
    const char *pre;   /* tokenizer.ggml.pre */
    const char *split; /* the word pattern; NULL: single digits, then the pattern of GPT-2 */
    const char *normalizer;
    const char *class;
    bool add_bos; /* when the file does not say */
    bool ignore_merges;
} styles[] = {
    {"smollm", NULL, NULL, "GPT2Tokenizer", false, false},
    {"qwen2", WORDS_BEFORE_DIGITS "\\p{N}" WORDS_AFTER_DIGITS, "NFC", "Qwen2Tokenizer", false,
     false},
    {"llama-bpe", WORDS_BEFORE_DIGITS "\\p{N}{1,3}" WORDS_AFTER_DIGITS, NULL,
     "PreTrainedTokenizerFast", true, true},
    {"llama3", WORDS_BEFORE_DIGITS "\\p{N}{1,3}" WORDS_AFTER_DIGITS, NULL,
     "PreTrainedTokenizerFast", true, true},
    {"lfm2", WORDS_BEFORE_DIGITS "\\p{N}{1,3}" WORDS_AFTER_DIGITS, NULL, "PreTrainedTokenizerFast",
     true, false},
};

struct tokens {
    const struct style *style;
    struct gguf_str *text, *merges;
    int64_t *type;
    size_t n, n_types, n_merges;
    bool add_bos;
};

static bool equals(const struct gguf_str *s, const char *word)
{
    return s->len == strlen(word) && memcmp(s->s, word, s->len) == 0;
}

static int find_style(const struct gguf *g, struct tokens *t, struct err *e)
{
    struct gguf_str model = {0}, pre = {0};
    char shown[96];

    if (gguf_get_str(g, "tokenizer.ggml.model", &model, e) < 0)
        return -1;
    if (!equals(&model, "gpt2"))
        return err_set(e, ERR_FORMAT,
                       "tokenizer \"%s\" is not supported, only byte-level BPE (\"gpt2\")",
                       st_name_str(model.s, model.len, shown));
    if (gguf_get_str(g, "tokenizer.ggml.pre", &pre, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        if (equals(&pre, styles[i].pre)) {
            t->style = &styles[i];
            return 0;
        }
    }
    return err_set(e, ERR_FORMAT,
                   "pre-tokenizer \"%s\" is not supported; smollm, qwen2, llama-bpe and lfm2 are",
                   st_name_str(pre.s, pre.len, shown));
}

static void tokens_release(struct tokens *t)
{
    free(t->text);
    free(t->merges);
    free(t->type);
}

static int check_strings(const struct gguf_str *s, size_t n, const char *what, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!utf8_valid(s[i].s, s[i].len) || memchr(s[i].s, 0, s[i].len))
            return err_set(e, ERR_FORMAT, "%s %zu of the tokenizer is not text in UTF-8", what, i);
    return 0;
}

static int tokens_read(const struct gguf *g, const struct gguf_params *p, struct tokens *t,
                       struct err *e)
{
    if (find_style(g, t, e) < 0 ||
        gguf_get_strings(g, "tokenizer.ggml.tokens", &t->text, &t->n, e) < 0 ||
        gguf_get_ints(g, "tokenizer.ggml.token_type", &t->type, &t->n_types, e) < 0 ||
        gguf_get_strings(g, "tokenizer.ggml.merges", &t->merges, &t->n_merges, e) < 0)
        return -1;
    if (t->n != t->n_types || (int64_t)t->n > p->vocab)
        return err_set(e, ERR_FORMAT,
                       "the tokenizer has %zu tokens and %zu types, the embedding %" PRId64 " rows",
                       t->n, t->n_types, p->vocab);
    t->add_bos = t->style->add_bos;
    if (gguf_has(g, "tokenizer.ggml.add_bos_token") &&
        gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, e) < 0)
        return -1;
    if (t->add_bos && (p->bos < 0 || p->bos >= (int64_t)t->n))
        return err_set(e, ERR_FORMAT, "the tokenizer adds a first token, but the file names none");
    return check_strings(t->text, t->n, "token", e) < 0
               ? -1
               : check_strings(t->merges, t->n_merges, "merge", e);
}

/* ---- tokenizer.json ---- */

static json_t *str_of(const struct gguf_str *s)
{
    return json_stringn(s->s, s->len);
}

static json_t *added_tokens(const struct tokens *t)
{
    json_t *list = json_array();

    for (size_t i = 0; i < t->n; i++) {
        if (t->type[i] != TOKEN_CONTROL && t->type[i] != TOKEN_USER)
            continue;
        json_array_append_new(
            list, json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                            str_of(&t->text[i]), "single_word", 0, "lstrip", 0, "rstrip", 0,
                            "normalized", 0, "special", t->type[i] == TOKEN_CONTROL));
    }
    return list;
}

static json_t *vocabulary(const struct tokens *t, struct err *e)
{
    json_t *vocab = json_object();
    char shown[96];

    for (size_t i = 0; i < t->n; i++) {
        const struct gguf_str *s = &t->text[i];

        if (t->type[i] == TOKEN_UNUSED)
            continue;
        if (json_object_getn(vocab, s->s, s->len)) {
            err_set(e, ERR_FORMAT, "duplicate token \"%s\"", st_name_str(s->s, s->len, shown));
            json_decref(vocab);
            return NULL;
        }
        json_object_setn_new(vocab, s->s, s->len, json_integer((json_int_t)i));
    }
    return vocab;
}

static json_t *merges(const struct tokens *t)
{
    json_t *list = json_array();

    for (size_t i = 0; i < t->n_merges; i++)
        json_array_append_new(list, str_of(&t->merges[i]));
    return list;
}

static json_t *byte_level(bool prefix_space, bool regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix_space,
                     "trim_offsets", 1, "use_regex", regex);
}

static json_t *pre_tokenizer(const struct style *style)
{
    json_t *first = style->split
                        ? json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                    style->split, "behavior", "Isolated", "invert", 0)
                        : json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);

    return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", first,
                     byte_level(false, !style->split));
}

/* Puts the first token in front: one text, or two. */
static json_t *post_processor(const struct tokens *t, const struct gguf_params *p)
{
    const struct gguf_str *bos;
    json_t *name, *single, *pair, *special;

    if (!t->add_bos)
        return json_null();
    bos = &t->text[p->bos];
    name = str_of(bos);
    single = json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}]", "SpecialToken", "id", name, "type_id", 0,
                       "Sequence", "id", "A", "type_id", 0);
    pair = json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}, {s:{s:O, s:i}}, {s:{s:s, s:i}}]",
                     "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                     "SpecialToken", "id", name, "type_id", 1, "Sequence", "id", "B", "type_id", 1);
    special = json_object();
    json_object_setn_new(
        special, bos->s, bos->len,
        json_pack("{s:O, s:[I], s:[O]}", "id", name, "ids", (json_int_t)p->bos, "tokens", name));
    json_decref(name);
    return json_pack("{s:s, s:[o, {s:s, s:o, s:o, s:o}]}", "type", "Sequence", "processors",
                     byte_level(true, true), "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", special);
}

static json_t *build(const struct tokens *t, const struct gguf_params *p, struct err *e)
{
    json_t *vocab = vocabulary(t, e), *model, *normalizer, *out;

    if (!vocab)
        return NULL;
    model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                      "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                      "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", t->style->ignore_merges,
                      "vocab", vocab, "merges", merges(t));
    normalizer =
        t->style->normalizer ? json_pack("{s:s}", "type", t->style->normalizer) : json_null();
    out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation",
                    "padding", "added_tokens", added_tokens(t), "normalizer", normalizer,
                    "pre_tokenizer", pre_tokenizer(t->style), "post_processor",
                    post_processor(t, p), "decoder", byte_level(true, true), "model", model);
    if (!out)
        err_nomem(e);
    return out;
}

json_t *gguf_tokenizer(const struct gguf *g, const struct gguf_params *p, struct err *e)
{
    struct tokens t = {0};
    json_t *out = tokens_read(g, p, &t, e) < 0 ? NULL : build(&t, p, e);

    tokens_release(&t);
    return out;
}

/* ---- tokenizer_config.json ---- */

static json_t *token_text(const struct tokens *t, int64_t id)
{
    return id >= 0 && id < (int64_t)t->n ? str_of(&t->text[id]) : json_null();
}

static int add_template(const struct gguf *g, json_t *config, struct err *e)
{
    struct gguf_str text = {0};

    if (!gguf_has(g, "tokenizer.chat_template"))
        return 0;
    if (gguf_get_str(g, "tokenizer.chat_template", &text, e) < 0)
        return -1;
    if (check_strings(&text, 1, "chat template", e) < 0)
        return -1;
    return json_object_set_new(config, "chat_template", str_of(&text)) ? err_nomem(e) : 0;
}

json_t *gguf_tokenizer_config(const struct gguf *g, const struct gguf_params *p, struct err *e)
{
    struct tokens t = {0};
    json_t *config = NULL;

    if (tokens_read(g, p, &t, e) < 0)
        goto done;
    config = json_pack("{s:b, s:o, s:b, s:o, s:I, s:o, s:s, s:o}", "add_bos_token", t.add_bos,
                       "bos_token", token_text(&t, p->bos), "clean_up_tokenization_spaces", 0,
                       "eos_token", token_text(&t, p->eos), "model_max_length",
                       (json_int_t)p->context, "pad_token", token_text(&t, p->pad),
                       "tokenizer_class", t.style->class, "unk_token", token_text(&t, p->unknown));
    if (!config) {
        err_nomem(e);
    } else if (add_template(g, config, e) < 0) {
        json_decref(config);
        config = NULL;
    }

done:
    tokens_release(&t);
    return config;
}
