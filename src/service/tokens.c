#include "service/tokens.h"

#include <ctype.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/sha256.h"

enum {
    TOKEN_MIN = 16,
    KEY_MIN = 4,
    TOKEN_MAX = 256,
    TOKENS_FILE_MAX = 1 << 20,
};

struct token_entry {
    unsigned char digest[SHA256_BYTES];
    struct token_owner owner;
};

struct tokens {
    struct token_entry *entries;
    size_t n;
};

const char *role_name(enum role role)
{
    return role == ROLE_OPERATOR ? "operator" : "trainer";
}

static bool identity_ok(const char *s, size_t n)
{
    if (n < 1 || n > TOKEN_IDENTITY_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
            return false;
    return true;
}

static bool token_ok(const char *s, size_t n, size_t least)
{
    if (n < least || n > TOKEN_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] > '~' || s[i] == ',')
            return false;
    return true;
}

static bool role_parse(const char *s, size_t n, enum role *out)
{
    if (n == 7 && memcmp(s, "trainer", 7) == 0)
        *out = ROLE_TRAINER;
    else if (n == 8 && memcmp(s, "operator", 8) == 0)
        *out = ROLE_OPERATOR;
    else
        return false;
    return true;
}

/* "role:" in front of an entry, *at behind it. False: no such role, or no colon at all. */
static bool take_role(const char **at, const char *end, enum role *out)
{
    const char *colon = memchr(*at, ':', (size_t)(end - *at));

    if (!colon || !role_parse(*at, (size_t)(colon - *at), out))
        return false;
    *at = colon + 1;
    return true;
}

static int add_digest(struct tokens *t, const struct token_entry *entry, int number, struct err *e)
{
    struct token_entry *grown;

    for (size_t i = 0; i < t->n; i++)
        if (CRYPTO_memcmp(t->entries[i].digest, entry->digest, SHA256_BYTES) == 0)
            return err_set(e, ERR_ARG, "entry %d: this token is given twice", number);
    grown = realloc(t->entries, (t->n + 1) * sizeof *grown);
    if (!grown)
        return err_nomem(e);
    t->entries = grown;
    t->entries[t->n++] = *entry;
    return 0;
}

/* How entries look: WITH_ROLE role:identity:token, else identity:key. */
enum { WITH_ROLE = 1, WITH_COMMENTS = 2 };

/* One entry s[0..n), already trimmed. `number` counts from 1. */
static int entry_add(struct tokens *t, const char *s, size_t n, unsigned how, int number,
                     struct err *e)
{
    struct token_entry entry = {.owner.role = ROLE_TRAINER};
    size_t least = how & WITH_ROLE ? TOKEN_MIN : KEY_MIN;
    const char *end = s + n, *colon;
    int wanted_colons = how & WITH_ROLE ? 2 : 1;

    for (const char *c = s; c < end; c++)
        wanted_colons -= *c == ':';
    if (wanted_colons > 0)
        return err_set(e, ERR_ARG, "entry %d is not %s", number,
                       how & WITH_ROLE ? "role:identity:token" : "identity:key");
    if (how & WITH_ROLE && !take_role(&s, end, &entry.owner.role))
        return err_set(e, ERR_ARG, "entry %d: the role must be trainer or operator", number);
    colon = memchr(s, ':', (size_t)(end - s));
    if (!identity_ok(s, (size_t)(colon - s)))
        return err_set(e, ERR_ARG, "entry %d: the identity must be 1 to %d of A-Z a-z 0-9 . _ -",
                       number, TOKEN_IDENTITY_MAX);
    memcpy(entry.owner.identity, s, (size_t)(colon - s));
    s = colon + 1;
    if (!token_ok(s, (size_t)(end - s), least))
        return err_set(e, ERR_ARG, "entry %d: a token is %zu to %d visible characters", number,
                       least, TOKEN_MAX);
    sha256_of(s, (size_t)(end - s), entry.digest);
    return add_digest(t, &entry, number, e);
}

/* Entries of text, separated by `separator`. */
static struct tokens *parse(const char *text, char separator, unsigned how, struct err *e)
{
    struct tokens *t = calloc(1, sizeof *t);
    int number = 0;

    if (!t) {
        err_nomem(e);
        return NULL;
    }
    for (const char *s = text; s && *s;) {
        const char *end = strchrnul(s, separator);
        const char *first = s, *last = end;

        while (first < last && isspace((unsigned char)*first))
            first++;
        while (last > first && isspace((unsigned char)last[-1]))
            last--;
        number++;
        if (!(how & WITH_COMMENTS && (first == last || *first == '#')) &&
            entry_add(t, first, (size_t)(last - first), how, number, e) < 0) {
            tokens_free(t);
            return NULL;
        }
        s = *end ? end + 1 : end;
    }
    return t;
}

struct tokens *tokens_parse(const char *list, struct err *e)
{
    return parse(list, ',', WITH_ROLE, e);
}

struct tokens *tokens_parse_keys(const char *list, struct err *e)
{
    return parse(list, ',', 0, e);
}

struct tokens *tokens_read(const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    struct buf text = {0}, dir = {0};
    struct tokens *t = NULL;
    int fd;

    buf_printf(&dir, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    fd = fs_open_dir(buf_str(&dir), e);
    if (fd >= 0 &&
        fs_read_file(fd, slash ? slash + 1 : path, FS_LINKS_INSIDE, TOKENS_FILE_MAX, &text, e) == 0)
        t = parse(buf_str(&text), '\n', WITH_ROLE | WITH_COMMENTS, e);
    if (text.data)
        OPENSSL_cleanse(text.data, text.cap);
    fs_close(fd);
    buf_release(&dir);
    buf_release(&text);
    return t;
}

void tokens_free(struct tokens *t)
{
    if (!t)
        return;
    free(t->entries);
    free(t);
}

bool tokens_empty(const struct tokens *t)
{
    return t->n == 0;
}

const struct token_owner *tokens_find_key(const struct tokens *t, const char *token)
{
    unsigned char digest[SHA256_BYTES];
    size_t found = 0; /* index + 1, chosen by masking: no branch tells which entry matched */

    if (!token)
        return NULL;
    sha256_of(token, strlen(token), digest);
    for (size_t i = 0; i < t->n; i++) {
        size_t equal = CRYPTO_memcmp(t->entries[i].digest, digest, SHA256_BYTES) == 0;

        found |= (i + 1) & (size_t)(-(intptr_t)equal);
    }
    OPENSSL_cleanse(digest, sizeof digest);
    return found ? &t->entries[found - 1].owner : NULL;
}

const struct token_owner *tokens_find(const struct tokens *t, const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    authorization += 7;
    while (*authorization == ' ')
        authorization++;
    return tokens_find_key(t, authorization);
}
