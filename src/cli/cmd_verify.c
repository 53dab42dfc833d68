/* cli/cmd_verify.c - cairn verify DIR | NAME: checks a model or checkpoint directory without a
 * server. A checkpoint may be named (BASE:RUN:step-N, RUN/step-NNNNNN, RUN/latest): it is looked up
 * below the roots.
 *
 * Weight files and their headers, config.json against the tensors, the tokenizer, the bytes (hash),
 * and for a checkpoint the manifest and the hash it states. Exit 0 all hold; 1 one does not; 2
 * usage. */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/sha256.h"
#include "cli/commands.h"
#include "cli/store_args.h"
#include "model/model.h"
#include "store/manifest.h"
#include "store/reader.h"
#include "store/resolve.h"
#include "store/roots.h"
#include "store/schema.h"
#include "tensor/model_dir.h"
#include "text/tokenizer.h"

enum verdict { HOLDS, FAILS, SKIPPED };

struct verify {
    struct cli *cli;
    int dir_fd;
    struct manifest_place place; /* of a checkpoint that was looked up: what it must be */
    bool checkpoint;             /* there is a manifest.json */
    struct manifest manifest;
    bool failed;
    json_t *checks; /* [{"check", "result", "message"}] */
    char sha256[SHA256_HEX];
    struct err e;
};

static void note(struct verify *v, const char *check, enum verdict result, const char *message)
{
    static const char *const words[] = {"ok", "failed", "skipped"};

    v->failed = v->failed || result == FAILS;
    if (!v->cli->json)
        fprintf(v->cli->out, "%-7s %-9s %s\n", words[result], check, message);
    if (result == FAILS)
        fprintf(v->cli->err, "cairn verify: %s: %s\n", check, message);
    json_array_append_new(v->checks, json_pack("{s:s, s:s, s:o}", "check", check, "result",
                                               words[result], "message", json_repaired(message)));
}

/* ---- the manifest ---- */

static void check_manifest(struct verify *v)
{
    struct schema *schema;
    json_t *errors = NULL;
    enum manifest_fault fault = MANIFEST_FAILED;
    char text[200];

    v->checkpoint = faccessat(v->dir_fd, MANIFEST_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (!v->checkpoint) {
        note(v, "manifest", SKIPPED, "a model directory: it has no " MANIFEST_FILE);
        return;
    }
    schema = schema_load(NULL, &v->e);
    if (schema)
        fault = manifest_read(v->dir_fd, schema, &v->place, &v->manifest, &errors, &v->e);
    if (fault != MANIFEST_OK) {
        note(v, "manifest", FAILS, v->e.msg);
    } else {
        snprintf(text, sizeof text, "%s, step %" PRId64 ", parent %s", v->manifest.name,
                 v->manifest.step, v->manifest.parent ? v->manifest.parent : "none");
        note(v, "manifest", HOLDS, text);
    }
    json_decref(errors);
    schema_free(schema);
}

/* ---- files, config, tokenizer ---- */

/* *md is open afterwards unless false is returned. */
static bool check_model(struct verify *v, struct model_dir *md)
{
    const struct model_dir_rules rules = {.f32_ok = !v->checkpoint};
    struct model_config config = {0};
    const char *reason = "";
    char text[400], dtypes[160];

    if (model_open_dir(v->dir_fd, &rules, md, &config, &reason, &v->e) < 0) {
        snprintf(text, sizeof text, "%s (%s)", v->e.msg, reason);
        note(v, "model", FAILS, text);
        return false;
    }
    st_index_dtypes(&md->all, NULL, dtypes, sizeof dtypes);
    snprintf(text, sizeof text, "%d weight file%s, %zu tensors, %s", md->n_files,
             md->n_files == 1 ? "" : "s", md->all.n, dtypes);
    note(v, "model", HOLDS, text);
    return true;
}

static void check_tokenizer(struct verify *v)
{
    struct tokenizer *t = tokenizer_open(v->dir_fd, &v->e);

    note(v, "tokenizer", t ? HOLDS : FAILS, t ? "tokenizer.json can be used" : v->e.msg);
    tokenizer_unref(t);
}

/* ---- the bytes ---- */

struct hashing {
    struct cli_progress bar;
    uint64_t done, total;
};

static int on_block(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    struct hashing *h = arg;

    (void)bytes;
    (void)e;
    h->done = offset + n;
    cli_progress_update(&h->bar, h->done, h->total);
    return 0;
}

/* Every byte of one weight file is read, so a disk that cannot give it back is noticed too. */
static bool hash_file(struct verify *v, const char *name, char sha256[SHA256_HEX])
{
    struct hashing h = {.bar = {.cli = v->cli, .label = name}};
    struct ckpt_reader *r = NULL;
    bool ok = false;

    if (ckpt_reader_open(v->dir_fd, name, &r, &v->e) == READER_OK) {
        h.total = (uint64_t)ckpt_reader_facts(r)->size;
        ok = ckpt_reader_hash(r, NULL, on_block, &h, sha256, &v->e) == 0;
    }
    cli_progress_end(&h.bar);
    ckpt_reader_close(r);
    if (!ok)
        note(v, "weights", FAILS, v->e.msg);
    return ok;
}

static void compare_hash(struct verify *v, const char *sha256)
{
    const char *stated = v->manifest.weights_sha256;
    char text[256];

    if (!stated) {
        snprintf(text, sizeof text, "sha256 %s", sha256);
        note(v, "weights", HOLDS, text);
    } else if (strcmp(stated, sha256) != 0) {
        snprintf(text, sizeof text, "sha256 is %s, the manifest says %s", sha256, stated);
        note(v, "weights", FAILS, text);
    } else {
        snprintf(text, sizeof text, "sha256 %s, as the manifest says", sha256);
        note(v, "weights", HOLDS, text);
    }
}

static void check_bytes(struct verify *v, const struct model_dir *md)
{
    char text[160], sha256[SHA256_HEX] = "";

    for (int i = 0; i < md->n_files; i++) {
        if (!hash_file(v, md->files[i].name, sha256))
            return;
        if (md->sharded) {
            snprintf(text, sizeof text, "%.60s sha256 %s", md->files[i].name, sha256);
            note(v, "weights", HOLDS, text);
        }
    }
    if (!md->sharded) {
        snprintf(v->sha256, sizeof v->sha256, "%s", sha256);
        compare_hash(v, sha256);
    }
}

static int report(struct verify *v, const char *dir)
{
    json_t *sha256 = v->sha256[0] ? json_string(v->sha256) : json_null();

    if (!v->cli->json) {
        json_decref(sha256);
        return v->failed ? EXIT_FAILED : EXIT_OK;
    }
    cli_print_json(v->cli, json_pack("{s:o, s:s, s:b, s:o, s:O}", "directory", json_repaired(dir),
                                     "kind", v->checkpoint ? "checkpoint" : "model", "ok",
                                     !v->failed, "weights_sha256", sha256, "checks", v->checks));
    return v->failed ? EXIT_FAILED : EXIT_OK;
}

/* ---- which directory ---- */

static int refuse_lookup(const struct resolved *at, const char *what, struct err *e)
{
    switch (at->outcome) {
    case RESOLVE_NOT_FOUND:
        return err_set(e, ERR_NOT_FOUND, "no root has %s", at->searched);
    case RESOLVE_AMBIGUOUS:
        return err_set(e, ERR_CONFLICT, "the run %s lies under two roots; say the directory",
                       at->run_id);
    case RESOLVE_FAILED:
        return -1;
    default:
        return err_set(e, ERR_ARG,
                       "%s is neither a directory nor the name of a checkpoint below the root "
                       "(BASE:RUN:step-N, RUN/step-NNNNNN, RUN/latest)",
                       what);
    }
}

static int look_up(struct verify *v, const struct store_args *a, const char *what,
                   struct resolved *at)
{
    struct roots *roots = store_args_open(a, &v->e);
    bool named = strchr(what, ':') != NULL;

    if (!roots)
        return -1;
    (named ? resolve_name : resolve_path)(roots, what, strlen(what), at, &v->e);
    roots_close(roots);
    if (at->outcome != RESOLVE_OK)
        return refuse_lookup(at, what, &v->e);
    v->place = (struct manifest_place){.run_id = at->run_id,
                                       .step = at->step,
                                       .base_model = named ? what : NULL,
                                       .base_len = at->base_len};
    return at->dir_fd;
}

/* A directory as it stands, else a checkpoint below the roots where some are known. */
static int open_what(struct verify *v, const struct store_args *a, const char *what,
                     struct resolved *at)
{
    int fd = fs_open_dir(what, &v->e);

    if (fd >= 0 || v->e.code != ERR_NOT_FOUND || !(strchr(what, ':') || store_args_known(a)))
        return fd;
    v->e = (struct err){0};
    return look_up(v, a, what, at);
}

int cmd_verify(struct cli *cli, int argc, char **argv)
{
    struct verify v = {.cli = cli};
    struct model_dir md = {0};
    struct store_args store = {0};
    struct resolved at = {.dir_fd = -1}; /* v.place points into it */
    const struct cli_opt opts[] = {STORE_OPTIONS(store), {0}};
    int rc = cli_options(cli, &argc, argv, opts, 1, 1);

    if (rc >= 0)
        return rc;
    v.dir_fd = open_what(&v, &store, argv[1], &at);
    if (v.dir_fd < 0)
        return cli_fail(cli, &v.e);
    v.checks = json_array();
    check_manifest(&v);
    if (check_model(&v, &md))
        check_bytes(&v, &md);
    check_tokenizer(&v);
    rc = report(&v, argv[1]);
    model_dir_close(&md);
    manifest_release(&v.manifest);
    json_decref(v.checks);
    fs_close(v.dir_fd);
    return rc;
}
