/* service/tokens.h - who may change weights: bearer tokens with a role.
 *
 * An entry is role:identity:token, split at the first two colons; role is trainer or operator,
 * identity 1 to 64 of [A-Za-z0-9._-], token 16 to 256 visible ASCII characters without comma.
 * Tokens are kept as SHA-256 digests; a presented one is hashed and compared with every digest in
 * constant time. Immutable after parsing: any thread. No message ever holds a token. */
#ifndef SERVICE_TOKENS_H
#define SERVICE_TOKENS_H

#include <stdbool.h>

struct err;
struct tokens;

enum role { ROLE_TRAINER = 1, ROLE_OPERATOR = 2 }; /* bits: a route allows a set */

enum { TOKEN_IDENTITY_MAX = 64 };

struct token_owner {
    char identity[TOKEN_IDENTITY_MAX + 1];
    enum role role;
};

const char *role_name(enum role role); /* "trainer", "operator" */

/* Entries separated by commas, spaces around them ignored; NULL or "" gives an empty set. Owned.
 * NULL with ERR_ARG: the message names the entry's number and what is wrong, never its text. */
struct tokens *tokens_parse(const char *list, struct err *e);
/* The same for entries without a role, identity:key, of the training API: keys of 4 characters and
 * more, every owner a trainer. */
struct tokens *tokens_parse_keys(const char *list, struct err *e);
/* One entry a line; empty lines and lines that begin with # are skipped. */
struct tokens *tokens_read(const char *path, struct err *e);
void tokens_free(struct tokens *t); /* NULL is allowed */
bool tokens_empty(const struct tokens *t);

/* The owner of the token in an Authorization header ("Bearer <token>"), borrowed; NULL: no header,
 * another scheme or an unknown token. */
const struct token_owner *tokens_find(const struct tokens *t, const char *authorization);
/* The same for the token alone; NULL is allowed. */
const struct token_owner *tokens_find_key(const struct tokens *t, const char *token);
#endif
