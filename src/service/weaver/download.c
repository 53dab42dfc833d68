/* service/weaver/download.c - signed addresses of an export's files, and the files behind them.
 *
 * The client fetches a file without its key, so the address itself carries the right: an HMAC of
 * artifact, name and end of validity under a key that dies with the process. */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "service/times.h"
#include "service/weaver/artifact_rows.h"
#include "service/weaver/export.h"
#include "service/weaver/impl.h"

enum { LINK_S = 15 * 60, MAC_HEX = 65 };

/* False: no memory. */
static bool sign(const struct weaver *w, const char *id, const char *name, int64_t expires,
                 char out[MAC_HEX])
{
    unsigned char mac[32] = {0};
    struct buf text = {0};
    unsigned n = 0;
    bool ok;

    buf_printf(&text, "%s\n%s\n%" PRId64, id, name, expires);
    ok = !text.failed && HMAC(EVP_sha256(), w->link_key, sizeof w->link_key,
                              (const unsigned char *)buf_str(&text), text.len, mac, &n);
    buf_release(&text);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * (size_t)i, 3, "%02x", mac[i]);
    return ok;
}

static json_t *file_object(const struct weaver *w, const struct weaver_call *c,
                           const struct w_artifact *a, const json_t *f)
{
    const char *name = json_string_value(json_object_get(f, "name"));
    int64_t expires = clock_wall_ms() / 1000 + LINK_S;
    char mac[MAC_HEX];
    struct buf url = {0};
    json_t *o = json_deep_copy(f);

    if (!sign(w, a->id, name, expires, mac)) {
        json_decref(o);
        return NULL;
    }
    buf_printf(&url, "%s/api/v1/artifacts/%s/files/%s?expires=%" PRId64 "&signature=%s", c->origin,
               a->id, name, expires, mac);
    json_object_set_new(o, "url", json_string(buf_str(&url)));
    json_object_set_new(o, "url_expires_at", json_time(expires * 1000));
    buf_release(&url);
    return o;
}

int weaver_artifact_files(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_artifact a;
    const json_t *f;
    json_t *files;
    bool whole = true;
    size_t i;

    if (w_artifact_find(w, c->key, &a, r) < 0)
        return -1;
    if (strcmp(a.status, "completed") != 0) {
        json_decref(a.manifest);
        return strcmp(a.status, "error") == 0
                   ? refuse(r, REFUSAL_W_ARTIFACT_NOT_FOUND, "The export failed: %.300s", a.error)
                   : refuse(r, REFUSAL_W_CHECKPOINT_NOT_READY, "The artifact is not complete.");
    }
    files = json_array();
    json_array_foreach (json_object_get(a.manifest, "files"), i, f) {
        whole &= json_array_append_new(files, file_object(w, c, &a, f)) == 0;
    }
    json_decref(a.manifest);
    if (!whole) {
        json_decref(files);
        return w_refuse_err(r, &(struct err){.code = ERR_NOMEM, .msg = "the list of files"});
    }
    c->data = json_pack("{s:o}", "files", files);
    return 0;
}

/* ---- the files ---- */

static int check_link(const struct weaver *w, const struct weaver_call *c, const char *name,
                      struct refusal *r)
{
    const char *expires = w_query(c, "expires"), *given = w_query(c, "signature");
    long long at = expires ? strtoll(expires, NULL, 10) : 0;
    char mac[MAC_HEX];

    if (!sign(w, c->key, name, at, mac))
        return w_refuse_err(r, &(struct err){.code = ERR_NOMEM, .msg = "the address"});
    if (!given || strlen(given) != MAC_HEX - 1 || CRYPTO_memcmp(given, mac, MAC_HEX - 1) != 0)
        return refuse(r, REFUSAL_W_LINK_EXPIRED,
                      "The address is not valid: ask for the artifact's files again.");
    if (clock_wall_ms() / 1000 >= at)
        return refuse(r, REFUSAL_W_LINK_EXPIRED,
                      "The address has expired: ask for the artifact's files again.");
    return 0;
}

/* "bytes=N-", "bytes=N-M", "bytes=-N". False: another form, which is ignored (RFC 9110). */
static bool parse_range(const char *text, int64_t size, int64_t *from, int64_t *n)
{
    long long first, last;
    char *end;

    if (!text || strncmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return false;
    text += 6;
    errno = 0;
    first = strtoll(text, &end, 10);
    if (errno || end == text)
        return false;
    if (*text == '-') { /* the last -first bytes */
        if (*end)
            return false;
        *from = first > -size ? size + first : 0;
        *n = first == 0 ? 0 : size - *from;
        return true;
    }
    if (*end++ != '-')
        return false;
    last = size - 1;
    if (*end) {
        const char *tail = end;

        last = strtoll(tail, &end, 10);
        if (errno || *end || last < first)
            return false;
    }
    *from = first;
    *n = first >= size ? 0 : (last < size - 1 ? last : size - 1) - first + 1;
    return true;
}

int weaver_file(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *name = c->rest;
    int64_t size, from = 0, n;
    struct err e = {0};
    int fd;

    if (check_link(w, c, name, r) < 0)
        return -1;
    fd = export_open(w, c->key, name, &size, &e);
    if (fd < 0)
        return e.code == ERR_NOT_FOUND
                   ? refuse(r, REFUSAL_W_ARTIFACT_NOT_FOUND, "The file is not there any more.")
                   : w_refuse_err(r, &e);
    c->file_size = n = size;
    if (parse_range(c->range, size, &from, &n)) {
        if (n == 0) {
            fs_close(fd);
            return refuse_with(r, REFUSAL_W_RANGE_NOT_SATISFIABLE,
                               json_pack("{s:I}", "size", (json_int_t)size),
                               "The file has %" PRId64 " bytes.", size);
        }
        c->status = 206;
    }
    c->file = fd;
    c->file_from = from;
    c->file_bytes = n;
    return 0;
}
