/* service/model_register.c - POST /api/models: a Hugging Face directory gets a row. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/nomem.h"
#include "service/dir_facts.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/registration.h"
#include "service/service.h"
#include "store/catalogue.h"

/* ---- the row ---- */

static char *copy(const char *s)
{
    char *c = s ? strdup(s) : NULL;

    if (s && !c)
        nomem_note();
    return c;
}

/* A directory that tells nothing is registered all the same, and its load fails. */
static void fill_row(struct model_row *row, const struct registration *g)
{
    struct dir_facts f;

    dir_facts_read(&f, g->path, g->trust_remote_code);
    *row = (struct model_row){.name = copy(registration_name(g)),
                              .source = copy(g->source),
                              .repo_id = copy(g->repo_id),
                              .local_path = copy(g->path),
                              .quantization = copy(g->quantization),
                              .revision = copy(g->revision),
                              .download_progress = 100,
                              .status = MODEL_READY,
                              .trust_remote_code = g->trust_remote_code};
    dir_facts_to_row(&f, row);
    dir_facts_release(&f);
}

static int add_row(struct service *s, struct model_row *row, struct refusal *r)
{
    enum catalogue_clash clash = CATALOGUE_NO_CLASH;
    int64_t other = 0;
    struct err e = {0};
    json_t *details;

    if (catalogue_add(s->db, row, &clash, &other, &e) == 0)
        return 0;
    if (e.code != ERR_CONFLICT)
        return refuse_internal(r, &e);
    details = json_pack("{s:I}", "existing_model_id", (json_int_t)other);
    if (clash == CATALOGUE_SAME_NAME)
        json_object_set_new(details, "name", json_string(row->name));
    if (clash == CATALOGUE_SAME_PATH)
        json_object_set_new(details, "local_path", json_string(row->local_path));
    if (clash == CATALOGUE_SAME_REPO) {
        json_object_set_new(details, "repo_id", json_string(row->repo_id));
        json_object_set_new(details, "quantization", json_string(row->quantization));
    }
    return refuse_with(r, REFUSAL_MODEL_ALREADY_EXISTS, details,
                       "Model %lld has the same %s already.", (long long)other,
                       clash == CATALOGUE_SAME_NAME   ? "name"
                       : clash == CATALOGUE_SAME_PATH ? "directory"
                                                      : "repository and quantization");
}

int models_register(struct service *s, const json_t *body, const json_t *errors, json_t **data,
                    struct refusal *r)
{
    struct registration g = {.quantization = "FP16"};
    struct model_row row = {0};
    struct err e = {0};
    int rc;

    if (registration_parse(&g, body, errors, r) < 0 || registration_find(s, &g, r) < 0)
        return -1;
    fill_row(&row, &g);
    rc = nomem_noted() ? refuse_no_memory(r) : add_row(s, &row, r); /* some of it may be missing */
    if (rc == 0 && (rc = models_get(s, row.id, data, r)) < 0 &&
        catalogue_delete(s->db, row.id, &e) < 0) /* what cannot be told is not there */
        log_ev(LOG_WARNING, "catalogue", "row=%" PRId64 " cause=\"%s\"", row.id, e.msg);
    model_row_release(&row);
    return rc;
}
