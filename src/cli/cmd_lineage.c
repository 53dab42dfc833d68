/* cli/cmd_lineage.c - cairn lineage [NAME]: from the base model down to what is served now, as a
 * tree; a break of the chain is shown where it is. With NAME the manifests are read here, without a
 * server. */
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/store_args.h"
#include "store/lineage.h"
#include "store/manifest.h"
#include "store/roots.h"
#include "store/schema.h"

enum { DEPTH_SHOWN = 12, DEPTH_MAX = 100000 }; /* deeper lines are not indented further */

/* ---- drawing ---- */

static const char *text_of(const json_t *o, const char *key, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : otherwise;
}

static const char *sentence_of(const char *reason)
{
    static const struct {
        const char *reason, *sentence;
    } known[] = {
        {"manifest_missing", "no root has this checkpoint"},
        {"manifest_invalid", "its manifest is not valid, or its place leads out of the root"},
        {"name_mismatch", "another checkpoint lies in its place"},
        {"cycle", "it is its own ancestor"},
        {"depth_limit", "the walk ends here (WEIGHTS_LINEAGE_MAX_DEPTH)"},
        {"ambiguous", "its run lies under two roots"},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].reason, reason))
            return known[i].sentence;
    return reason;
}

static void indent(struct cli *cli, int depth)
{
    for (int i = 1; i < depth && i < DEPTH_SHOWN; i++)
        fputs("   ", cli->out);
    fputs(depth ? "└─ " : "", cli->out);
}

/* The base model, and what is missing between it and the chain. Returns the depth that follows. */
static int print_root(struct cli *cli, const json_t *data)
{
    const json_t *broken = json_object_get(data, "break");
    const char *reason = text_of(broken, "reason", "?");

    fprintf(cli->out, "%s\n", text_of(data, "base_model", "?"));
    if (!json_is_object(broken))
        return 1;
    indent(cli, 1);
    fprintf(cli->out, "... the chain breaks at %s: %s (%s)\n", text_of(broken, "at", "?"),
            sentence_of(reason), reason);
    return 2;
}

static void print_entry(struct cli *cli, int depth, const json_t *entry, const char *mark)
{
    indent(cli, depth);
    fprintf(cli->out, "%s  %.12s  %s/%s%s\n", text_of(entry, "name", "?"),
            text_of(entry, "weights_sha256", "?"), text_of(entry, "root", "?"),
            text_of(entry, "path", "?"), mark);
}

static int print_tree(struct cli *cli, json_t *data)
{
    const json_t *chain = json_object_get(data, "chain");
    const json_t *resident = json_object_get(data, "resident");
    json_int_t commits = json_integer_value(json_object_get(resident, "commits_since_identity"));
    int depth = print_root(cli, data);

    for (size_t i = json_array_size(chain); i-- > 0; depth++)
        print_entry(cli, depth, json_array_get(chain, i),
                    i == 0 && resident && !commits ? "  <- resident" : "");
    if (commits) {
        indent(cli, depth);
        fprintf(cli->out, "%lld unsaved commit%s  <- resident\n", (long long)commits,
                commits == 1 ? "" : "s");
    }
    json_decref(data);
    return EXIT_OK;
}

/* ---- offline ---- */

struct offline {
    struct buf chain;
    char base_model[1024]; /* of the youngest */
};

static int add_entry(void *arg, const struct lineage_entry *entry, struct err *e)
{
    struct offline *o = arg;

    if (!o->chain.len)
        snprintf(o->base_model, sizeof o->base_model, "%s", entry->manifest->base_model);
    buf_add_char(&o->chain, o->chain.len ? ',' : '[');
    lineage_write_entry(&o->chain, entry);
    return o->chain.failed ? err_nomem(e) : 0;
}

static json_t *parse(const struct buf *text, struct err *e)
{
    return text->failed ? (err_nomem(e), NULL) : json_parse(buf_str(text), text->len, e);
}

/* The answer of GET /api/weights/lineage without `resident`. */
static json_t *offline_answer(struct offline *o, const struct lineage_end *end, struct err *e)
{
    struct buf broken = {0};
    json_t *chain, *at;

    buf_add_str(&o->chain, o->chain.len ? "]" : "[]");
    lineage_write_break(&broken, end);
    chain = parse(&o->chain, e);
    at = parse(&broken, e);
    buf_release(&broken);
    return json_pack("{s:o, s:o, s:b, s:o, s:b}", "base_model",
                     o->base_model[0] ? json_repaired(o->base_model) : json_null(), "chain", chain,
                     "complete", end->reason == LINEAGE_COMPLETE, "break", at, "weights_verified",
                     0);
}

static json_t *walk_offline(const struct store_args *a, const char *name, struct err *e)
{
    struct roots *roots = store_args_open(a, e);
    struct schema *schema = roots ? schema_load(NULL, e) : NULL;
    struct offline o = {0};
    struct lineage_end end = {0};
    json_t *data = NULL;

    if (schema && lineage_walk(roots, schema, name, DEPTH_MAX, add_entry, &o, &end, e) == 0) {
        if (end.depth == 0)
            err_set(e, ERR_NOT_FOUND, "%s: %s", name, sentence_of(lineage_break_name(end.reason)));
        else
            data = offline_answer(&o, &end, e);
        lineage_end_release(&end);
    }
    buf_release(&o.chain);
    schema_free(schema);
    roots_close(roots);
    return data;
}

/* ---- the command ---- */

static json_t *ask(const struct client_args *args, struct err *e)
{
    struct client *c = client_new(args, e);
    json_t *data = c ? client_data(c, "GET", "/api/weights/lineage", NULL, e) : NULL;

    client_free(c);
    return data;
}

int cmd_lineage(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct store_args store = {0};
    const struct cli_opt opts[] = {STORE_OPTIONS(store), CLIENT_OPTIONS(args), {0}};
    struct err e = {0};
    json_t *data;
    int rc = cli_options(cli, &argc, argv, opts, 0, 1);

    if (rc >= 0)
        return rc;
    data = argc == 2 ? walk_offline(&store, argv[1], &e) : ask(&args, &e);
    if (!data)
        return cli_fail(cli, &e);
    return cli->json ? cli_print_json(cli, data) : print_tree(cli, data);
}
