/* service/registration.h - which directory a body of POST /api/models or /preview means.
 *
 * Order: fill in defaults, registration_parse, registration_find. Strings are borrowed from the
 * body. `local` names the directory; `huggingface` is looked up in MODEL_CACHE_DIR (flat layout, or
 * the hub's cache layout). Nothing is fetched from the network. */
#ifndef SERVICE_REGISTRATION_H
#define SERVICE_REGISTRATION_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

struct refusal;
struct service;

struct registration {
    const char *source, *repo_id, *local_path, *quantization, *hf_token, *custom_name, *revision;
    bool trust_remote_code;
    char path[PATH_MAX]; /* real path of the directory, after registration_find */
};

/* body NULL: malformed, `errors` says why. VALIDATION_ERROR. */
int registration_parse(struct registration *g, const json_t *body, const json_t *errors,
                       struct refusal *r);
/* INVALID_LOCAL_PATH, REPO_NOT_FOUND. */
int registration_find(struct service *s, struct registration *g, struct refusal *r);
/* What a row of it is called. Borrowed. */
const char *registration_name(const struct registration *g);
#endif
