/* tokenizer.json to struct tokenizer. Every part is either understood or refused by its name:
 * docs/formats/tokenizer.md lists them. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/piece_table.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_text.h"

/* ---- vocabulary ---- */

static int64_t highest_id(const struct piece_table *table, const json_t *added)
{
    int64_t max = table->max_id;
    const json_t *item;
    size_t i;

    json_array_foreach (added, i, item) {
        int64_t id = json_integer_value(json_object_get(item, "id"));

        if (id > max)
            max = id;
    }
    return max;
}

static int load_vocab(struct tokenizer *t, const struct piece_table *table, const json_t *added,
                      struct err *e)
{
    if (vocab_init(&t->vocab, highest_id(table, added), e) < 0)
        return -1;
    for (size_t i = 0; i < table->n; i++) {
        const struct piece_entry *p = &table->entries[i];

        if (vocab_put_spelled(&t->vocab, p->id, buf_str(&table->text) + p->start, p->len, e) < 0)
            return -1;
    }
    return 0;
}

static int load_pieces(struct tokenizer *t, const struct tokenizer_text *text, const json_t *added,
                       struct err *e)
{
    struct piece_table table = {0};
    int rc = text->vocab ? piece_table_read(&table, text->vocab, text->vocab_len, e)
                         : err_set(e, ERR_FORMAT, "model.vocab is missing");

    if (rc == 0)
        rc = load_vocab(t, &table, added, e);
    if (rc == 0)
        rc = text->merges ? merges_read(&t->bpe, &table, text->merges, text->merges_len, e)
                          : err_set(e, ERR_FORMAT, "model.merges is missing");
    piece_table_release(&table);
    return rc;
}

/* One added token: {"id", "content", "special", "normalized", "lstrip", "rstrip", "single_word"}.
 */
static int load_added_token(struct tokenizer *t, const json_t *item, struct err *e)
{
    const char *content;
    int64_t id;
    bool normalized = false;
    struct added_token a = {0};

    if (json_get_str(item, "content", &content, e) < 0 || json_get_int(item, "id", &id, e) < 0 ||
        json_opt_bool(item, "special", &a.special, e) < 0 ||
        json_opt_bool(item, "normalized", &normalized, e) < 0 ||
        json_opt_bool(item, "lstrip", &a.lstrip, e) < 0 ||
        json_opt_bool(item, "rstrip", &a.rstrip, e) < 0 ||
        json_opt_bool(item, "single_word", &a.single_word, e) < 0)
        return err_wrap(e, "added_tokens");
    a.text = (char *)(uintptr_t)content;
    a.len = json_string_length(json_object_get(item, "content")); /* may hold NUL */
    a.id = (int32_t)id;
    if (a.len == 0)
        return err_set(e, ERR_FORMAT, "the added token %" PRId64 " is empty", id);
    if (vocab_put_added(&t->vocab, id, content, a.len, a.special, e) < 0)
        return -1;
    return added_put(normalized ? &t->normalized : &t->raw, &a, e);
}

static int load_added(struct tokenizer *t, const json_t *list, struct err *e)
{
    const json_t *item;
    size_t i;

    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(e, ERR_FORMAT, "added_tokens is not a list");
    json_array_foreach (list, i, item)
        if (load_added_token(t, item, e) < 0)
            return -1;
    added_seal(&t->raw);
    added_seal(&t->normalized);
    return 0;
}

/* ---- model ---- */

static bool is_set(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return v && !json_is_null(v) && !json_is_false(v) &&
           !(json_is_string(v) && json_string_length(v) == 0) &&
           !(json_is_number(v) && json_number_value(v) == 0);
}

static int check_model(const json_t *model, struct err *e)
{
    static const char *const unsupported[] = {"byte_fallback", "continuing_subword_prefix",
                                              "end_of_word_suffix", "dropout"};
    const char *type = json_string_value(json_object_get(model, "type"));

    if (type && strcmp(type, "BPE") != 0)
        return err_set(e, ERR_FORMAT, "the tokenizer model %s is not supported; BPE is", type);
    if (!type && !json_is_array(json_object_get(model, "merges")))
        return err_set(e, ERR_FORMAT, "tokenizer.json has no model of type BPE");
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (is_set(model, unsupported[i]))
            return err_set(e, ERR_FORMAT, "model.%s is not supported", unsupported[i]);
    return 0;
}

static int refuse_reached(const struct tokenizer *t, int32_t id, const char *how, struct err *e)
{
    return err_set(e, ERR_FORMAT,
                   "the special token \"%.*s\" (id %" PRId32
                   ") is also what %s of plain text; give "
                   "it an id of its own",
                   (int)t->vocab.pieces[id].len, vocab_bytes(&t->vocab, id), id, how);
}

/* A user who writes plain text must never be able to write a special token. */
static int check_special(const struct tokenizer *t, struct err *e)
{
    for (size_t i = 0; i <= t->bpe.mask; i++) {
        const struct merge *m = &t->bpe.slots[i];

        if (m->left >= 0 && tokenizer_is_special(t, m->id))
            return refuse_reached(t, m->id, "model.merges make", e);
    }
    for (int b = 0; b < 256; b++) {
        int32_t id = t->vocab.byte_id[b];

        if (id >= 0 && tokenizer_is_special(t, id))
            return refuse_reached(t, id, "model.vocab makes", e);
    }
    return 0;
}

/* What a byte without a piece becomes; without unk_token it vanishes. */
static int load_unknown(struct tokenizer *t, const json_t *model, struct err *e)
{
    const char *name = NULL;
    bool fuse = false;
    int32_t id;

    if (json_opt_str(model, "unk_token", &name, e) < 0 ||
        json_opt_bool(model, "fuse_unk", &fuse, e) < 0)
        return -1;
    if (!name)
        return 0;
    id = vocab_find(&t->vocab, name, strlen(name));
    if (id < 0)
        return err_set(e, ERR_FORMAT, "model.unk_token \"%.40s\" is not a token", name);
    vocab_set_unknown(&t->vocab, id, fuse);
    return 0;
}

static int load_model(struct tokenizer *t, const struct tokenizer_text *text, struct err *e)
{
    const json_t *model = json_object_get(text->rest, "model");
    const json_t *added = json_object_get(text->rest, "added_tokens");

    if (check_model(model, e) < 0 ||
        json_opt_bool(model, "ignore_merges", &t->ignore_merges, e) < 0 ||
        load_pieces(t, text, added, e) < 0 || load_added(t, added, e) < 0 ||
        vocab_index(&t->vocab, e) < 0 || check_special(t, e) < 0)
        return -1;
    return load_unknown(t, model, e);
}

/* ---- normaliser, post-processor, decoder ---- */

static int add_form(struct tokenizer *t, const json_t *spec, struct err *e)
{
    static const char *const names[] = {
        [NORMAL_NFC] = "NFC", [NORMAL_NFD] = "NFD", [NORMAL_NFKC] = "NFKC", [NORMAL_NFKD] = "NFKD"};
    const char *type = json_string_value(json_object_get(spec, "type"));

    for (enum normal_form f = NORMAL_NFC; type && f <= NORMAL_NFKD; f++)
        if (strcmp(type, names[f]) == 0) {
            if (t->n_forms == NORMAL_MAX_STEPS)
                return err_set(e, ERR_FORMAT, "the normalizer has more than %d steps",
                               NORMAL_MAX_STEPS);
            t->forms[t->n_forms++] = f;
            return 0;
        }
    return err_set(e, ERR_FORMAT, "the normalizer %s is not supported; NFC, NFD, NFKC and NFKD are",
                   type ? type : "without type");
}

/* Calls one() for the object, or for each of a Sequence's list. Absent or null: nothing to do. */
static int for_each_part(struct tokenizer *t, const json_t *spec, const char *list_key,
                         int one(struct tokenizer *t, const json_t *spec, struct err *e),
                         struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *item;
    size_t i;

    if (!spec || json_is_null(spec))
        return 0;
    if (!type || strcmp(type, "Sequence") != 0)
        return one(t, spec, e);
    json_array_foreach (json_object_get(spec, list_key), i, item)
        if (one(t, item, e) < 0)
            return -1;
    return 0;
}

/* The ids of one SpecialToken of a template, appended to the list. */
static int add_template_token(struct tokenizer *t, const json_t *spec, const char *name,
                              struct token_list *to, struct err *e)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(spec, "special_tokens"), name), "ids");
    const json_t *id;
    size_t i;

    if (!json_is_array(ids))
        return err_set(e, ERR_FORMAT, "post_processor.special_tokens lacks \"%.40s\"", name);
    json_array_foreach (ids, i, id) {
        if (!json_is_integer(id) || !vocab_has(&t->vocab, json_integer_value(id)))
            return err_set(e, ERR_FORMAT, "post_processor: \"%.40s\" has an id without a token",
                           name);
        if (token_list_push(to, (int32_t)json_integer_value(id), e) < 0)
            return -1;
    }
    return 0;
}

static int load_template(struct tokenizer *t, const json_t *spec, struct err *e)
{
    const json_t *single = json_object_get(spec, "single"), *item;
    bool after = false;
    size_t i;

    if (!json_is_array(single))
        return err_set(e, ERR_FORMAT, "post_processor.single is not a list");
    json_array_foreach (single, i, item) {
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));

        if (json_object_get(item, "Sequence")) {
            if (after)
                return err_set(e, ERR_FORMAT, "post_processor.single repeats the text");
            after = true;
        } else if (!name) {
            return err_set(e, ERR_FORMAT, "post_processor.single[%zu] is not a part of a template",
                           i);
        } else if (add_template_token(t, spec, name, after ? &t->suffix : &t->prefix, e) < 0) {
            return -1;
        }
    }
    return after ? 0 : err_set(e, ERR_FORMAT, "post_processor.single lacks the text");
}

static int add_processor(struct tokenizer *t, const json_t *spec, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));

    if (type && strcmp(type, "ByteLevel") == 0) /* trims offsets, which we do not give */
        return 0;
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return load_template(t, spec, e);
    return err_set(e, ERR_FORMAT,
                   "the post_processor %s is not supported; TemplateProcessing and ByteLevel are",
                   type ? type : "without type");
}

static int check_decoder(struct tokenizer *t, const json_t *spec, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));

    (void)t;
    if (type && strcmp(type, "ByteLevel") == 0)
        return 0;
    return err_set(e, ERR_FORMAT, "the decoder %s is not supported; ByteLevel is",
                   type ? type : "without type");
}

/* ---- tokenizer_config.json ---- */

/* "bos_token": "<s>", or {"content": "<s>", ...}. */
static int32_t named_token(const struct tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? vocab_find(&t->vocab, json_string_value(v), json_string_length(v))
                             : -1;
}

int tokenizer_load(struct tokenizer *t, const struct tokenizer_text *text, const json_t *config,
                   struct err *e)
{
    const json_t *json = text->rest;

    if (!json_is_object(json))
        return err_set(e, ERR_FORMAT, "it is not an object");
    if (load_model(t, text, e) < 0 ||
        for_each_part(t, json_object_get(json, "normalizer"), "normalizers", add_form, e) < 0 ||
        pretoken_init(&t->pretoken, json_object_get(json, "pre_tokenizer"), e) < 0 ||
        for_each_part(t, json_object_get(json, "post_processor"), "processors", add_processor, e) <
            0 ||
        for_each_part(t, json_object_get(json, "decoder"), "decoders", check_decoder, e) < 0 ||
        char_classes_init(&t->classes, e) < 0)
        return -1;
    t->bos = named_token(t, config, "bos_token");
    t->eos = named_token(t, config, "eos_token");
    t->pad = named_token(t, config, "pad_token");
    return 0;
}

void tokenizer_release(struct tokenizer *t)
{
    char_classes_release(&t->classes);
    vocab_release(&t->vocab);
    bpe_release(&t->bpe);
    added_release(&t->raw);
    added_release(&t->normalized);
    pretoken_release(&t->pretoken);
    token_list_release(&t->prefix);
    token_list_release(&t->suffix);
}
