/* generate/grammar.h - constrained decoding: only tokens that keep the answer inside a language.
 *
 * Three objects:
 *   struct grammar        a language of byte strings: a JSON schema, any JSON object, the call of a
 *                         tool. Rules over bytes that call each other, so JSON may nest. Counted,
 *                         immutable.
 *   struct grammar_bound  a grammar together with one vocabulary, and the masks found so far.
 *                         Counted; any thread (masks are published once, without a lock).
 *   struct grammar_run    how far one answer has come. One thread at a time.
 *
 * Calling order: a grammar, grammar_bind, then for each answer grammar_run_new, and for each token
 * grammar_run_mask (which tokens are possible), pick one, grammar_run_accept. What is picked from
 * the mask is always a beginning of a string of the language, and every beginning can be finished:
 * branches without an end are cut off when the grammar is made, nesting is bounded by what is left
 * of the depth. Text is always UTF-8. docs/lessons/constrained-decoding.md tells how it works.
 *
 * Errors: ERR_ARG, with what is wrong in msg and the path inside the schema in detail
 * (".properties.a. multipleOf", or "" for the whole); ERR_NOMEM. */
#ifndef GENERATE_GRAMMAR_H
#define GENERATE_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct grammar;
struct grammar_bound;
struct grammar_run;
struct token_trie;

/* ---- languages; each owned ---- */

/* Any JSON object. */
struct grammar *grammar_json_object(struct err *e);

/* The values that fit a JSON schema, in the subset of docs/api/openai.md; `schema` is borrowed
 * during the call. Properties come in the schema's order; those that it does not name come only
 * where additionalProperties says so. */
struct grammar *grammar_schema(const json_t *schema, struct err *e);

/* One tool that may be called. */
struct grammar_tool {
    const char *name;
    const json_t *parameters; /* schema of an object; NULL: no arguments */
};

/* How a family of models writes a call: before + name + between + arguments + after. */
struct grammar_call_form {
    const char *open, *close; /* around all calls; may begin with TRIE_SPECIAL and name a token */
    const char *before, *between, *after; /* of each call */
    const char *separator;                /* between two calls; NULL: one call only */
    bool keywords; /* arguments are `name=value, ...` with the literals of Python, else an object */
};

/* A call of one of the tools, or several where the form has a separator. ERR_ARG as grammar_schema,
 * the detail beginning with the tool's number ("[2].function.parameters.properties.a"). */
struct grammar *grammar_calls(const struct grammar_call_form *form,
                              const struct grammar_tool *tools, int n_tools, bool several,
                              struct err *e);

struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is allowed */
/* SHA256_BYTES: grammars that were made of the same have the same. */
const unsigned char *grammar_key(const struct grammar *g);

/* ---- with a vocabulary ---- */

struct grammar_bound *grammar_bind(struct grammar *g, struct token_trie *t, struct err *e);
struct grammar_bound *grammar_bound_ref(struct grammar_bound *b);
void grammar_bound_unref(struct grammar_bound *b); /* NULL is allowed */
const struct token_trie *grammar_bound_trie(const struct grammar_bound *b);

/* ---- one answer ---- */

struct grammar_run *grammar_run_new(struct grammar_bound *b, struct err *e);
void grammar_run_free(struct grammar_run *r); /* NULL is allowed */

/* Words of a mask: bit id % 64 of word id / 64 says that token id is possible. */
static inline size_t grammar_mask_words(int vocab)
{
    return ((size_t)vocab + 63) / 64;
}

/* Fills mask [grammar_mask_words]. End tokens are possible where the answer may end, and where
 * nothing but end tokens can go on; a caller may name any token as one. -1 with ERR_NOMEM. */
int grammar_run_mask(struct grammar_run *r, const int32_t *ends, int n_ends, uint64_t *mask,
                     struct err *e);
/* The answer goes on with a token of the last mask, not an end token. -1: it is not possible here.
 */
int grammar_run_accept(struct grammar_run *r, int32_t token, struct err *e);
bool grammar_run_may_end(const struct grammar_run *r);
/* It may end, and nothing else can come. */
bool grammar_run_is_over(const struct grammar_run *r);
#endif
