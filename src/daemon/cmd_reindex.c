#include "daemon/cmd_reindex.h"

#include <inttypes.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "daemon/config.h"
#include "daemon/state_dir.h"
#include "db/db.h"
#include "service/weaver/reindex.h"
#include "store/catalogue.h"
#include "store/reindex.h"
#include "store/roots.h"
#include "store/schema.h"

/* What is opened, in this order. */
struct parts {
    struct config config;
    struct roots *roots;
    int state_lock, weaver_lock;
    struct db *db;
    struct schema *schema;
};

struct report {
    struct cli *cli;
    json_t *entries;
};

static int open_parts(struct parts *p, struct err *e)
{
    const struct settings *s = &p->config.settings;
    struct buf path = {0}, warnings = {0};

    p->roots = roots_open(s->checkpoint_dir, s->read_roots, &warnings, e);
    buf_release(&warnings);
    if (!p->roots || (p->state_lock = state_dir_open(s->state_dir, e)) < 0 ||
        (p->weaver_lock = weaver_dir_open(s->weaver_dir, e)) < 0)
        return -1;
    buf_printf(&path, "%s/cairn.db", s->state_dir);
    p->db = db_open(buf_str(&path), e);
    buf_release(&path);
    if (!p->db || catalogue_start(p->db, e) < 0)
        return -1;
    p->schema = schema_load(s->schema_file, e);
    return p->schema ? 0 : -1;
}

static void close_parts(struct parts *p)
{
    schema_free(p->schema);
    db_close(p->db);
    fs_close(p->weaver_lock);
    fs_close(p->state_lock);
    roots_close(p->roots);
    config_release(&p->config);
}

static int tell(void *arg, const struct reindex_entry *entry, struct err *e)
{
    const struct report *r = arg;
    const char *word = reindex_outcome_name(entry->outcome);

    if (!r->cli->json) {
        fprintf(r->cli->out, "%-8s %s/%s  %s%s\n", word, entry->root, entry->path, entry->name,
                *entry->name ? "" : entry->problem);
        if (*entry->name && *entry->problem)
            fprintf(r->cli->out, "%-8s %s\n", "", entry->problem);
        return 0;
    }
    return json_array_append_new(
               r->entries,
               json_pack("{s:s, s:o, s:s, s:o, s:o, s:o}", "outcome", word, "root",
                         json_repaired(entry->root), "path", entry->path, "name",
                         *entry->name ? json_repaired(entry->name) : json_null(), "row",
                         entry->row ? json_integer(entry->row) : json_null(), "problem",
                         *entry->problem ? json_repaired(entry->problem) : json_null())) == 0
               ? 0
               : err_nomem(e);
}

static int print_counts(const struct report *r, const int64_t count[REINDEX_N])
{
    json_t *o;

    if (!r->cli->json) {
        for (int i = 0; i < REINDEX_N; i++)
            fprintf(r->cli->out, "%" PRId64 " %s%s", count[i],
                    reindex_outcome_name((enum reindex_outcome)i), i + 1 < REINDEX_N ? ", " : "\n");
        return count[REINDEX_REFUSED] ? EXIT_FAILED : EXIT_OK;
    }
    o = json_pack("{s:O}", "checkpoints", r->entries);
    for (int i = 0; i < REINDEX_N; i++)
        json_object_set_new(o, reindex_outcome_name((enum reindex_outcome)i),
                            json_integer(count[i]));
    if (cli_print_json(r->cli, o) != EXIT_OK || count[REINDEX_REFUSED])
        return EXIT_FAILED;
    return EXIT_OK;
}

static int reindex(struct report *r, struct parts *p, bool verify, struct err *e)
{
    int64_t count[REINDEX_N] = {0};
    struct reindex_req req = {.db = p->db,
                              .roots = p->roots,
                              .schema = p->schema,
                              .verify = verify,
                              .on_entry = tell,
                              .arg = r};

    struct weaver_reindex_req weaver = {.db = p->db,
                                        .root = p->config.settings.weaver_dir,
                                        .verify = verify,
                                        .on_entry = tell,
                                        .arg = r};

    if (reindex_checkpoints(&req, count, e) < 0 || weaver_reindex(&weaver, count, e) < 0)
        return cli_fail(r->cli, e);
    return print_counts(r, count);
}

int cmd_reindex(struct cli *cli, int argc, char **argv)
{
    const char *state_dir = NULL, *checkpoint_dir = NULL;
    bool verify = false;
    const struct cli_opt opts[] = {
        {.name = "state-dir",
         .arg = "DIR",
         .help = "the catalogue lives here (STATE_DIR)",
         .str = &state_dir},
        {.name = "checkpoint-dir",
         .arg = "DIR",
         .help = "the primary root (WEIGHTS_CHECKPOINT_DIR)",
         .str = &checkpoint_dir},
        {.name = "verify", .help = "read and hash the weights of each checkpoint", .flag = &verify},
        {0},
    };
    int rc = cli_options(cli, &argc, argv, opts, 0, 0);
    struct report r = {.cli = cli};
    struct buf warnings = {0};
    struct parts p = {.state_lock = -1, .weaver_lock = -1};
    struct err e = {0};

    if (rc >= 0)
        return rc;
    r.entries = json_array();
    rc = config_read(&p.config, &warnings, &e);
    if (state_dir)
        p.config.settings.state_dir = state_dir;
    if (checkpoint_dir)
        p.config.settings.checkpoint_dir = checkpoint_dir;
    if (rc < 0 || config_directories(&p.config, &e) < 0 || open_parts(&p, &e) < 0)
        rc = cli_fail(cli, &e);
    else
        rc = reindex(&r, &p, verify, &e);
    buf_release(&warnings);
    close_parts(&p);
    json_decref(r.entries);
    return rc;
}
