/* text/chat_source.h - the inside of struct chat_source, for chat_template.c. */
#ifndef TEXT_CHAT_SOURCE_H
#define TEXT_CHAT_SOURCE_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/sha256.h"

enum { CHAT_TEMPLATES_MAX = 16 };

struct chat_text {
    char *name; /* owned; "default", "tool_use", ... */
    char *text; /* owned */
    size_t len;
    unsigned char key[SHA256_BYTES]; /* of the text: the worker keeps a child for each */
};

struct chat_source {
    atomic_int refs;
    struct chat_text templates[CHAT_TEMPLATES_MAX];
    size_t n;
    struct buf
        special; /* the special tokens as members of a JSON object, each followed by a comma */
};

const struct chat_text *chat_source_find(const struct chat_source *s, const char *name);
#endif
