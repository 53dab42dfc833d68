/* service/grammar_cache.h - grammars that are bound to a vocabulary already.
 *
 * A grammar finds its masks as it goes, and a vocabulary's trie takes a tenth of a second; so both
 * are kept for the next request, those used last. Any thread. */
#ifndef SERVICE_GRAMMAR_CACHE_H
#define SERVICE_GRAMMAR_CACHE_H

struct err;
struct grammar;
struct grammar_bound;
struct grammar_cache;
struct tokenizer;

struct grammar_cache *grammar_cache_new(struct err *e);
void grammar_cache_free(struct grammar_cache *c); /* NULL is allowed */

/* The grammar with the vocabulary of `t` (`vocab` ids of the model), counted for the caller. NULL
 * with ERR_FORMAT: the vocabulary cannot spell every text; ERR_NOMEM. */
struct grammar_bound *grammar_cache_bind(struct grammar_cache *c, struct grammar *g,
                                         struct tokenizer *t, int vocab, struct err *e);
#endif
