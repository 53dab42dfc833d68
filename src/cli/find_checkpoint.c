#include "cli/find_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/client.h"

static json_t *by_id(struct client *c, const char *id, struct err *e)
{
    char *segment = client_escape(c, id), path[512];

    snprintf(path, sizeof path, "/api/v1/checkpoints/%s", segment ? segment : "");
    free(segment);
    return client_weaver(c, "GET", path, NULL, e);
}

/* weaver://<model>/checkpoints/<slug>: among the checkpoints of that model. */
static json_t *by_path(struct client *c, const char *name, struct err *e)
{
    const char *model = name + strlen("weaver://");
    char path[128];
    json_t *page, *o, *found = NULL;
    size_t i;

    snprintf(path, sizeof path, "/api/v1/models/%.*s/checkpoints", (int)strcspn(model, "/"), model);
    page = client_weaver(c, "GET", path, NULL, e);
    if (!page)
        return NULL;
    json_array_foreach (json_object_get(page, "items"), i, o) {
        const char *at = json_string_value(json_object_get(o, "path"));

        if (!found && at && strcmp(at, name) == 0)
            found = json_incref(o);
    }
    json_decref(page);
    if (!found)
        err_set(e, ERR_NOT_FOUND, "checkpoint_not_found: there is no checkpoint '%.200s'", name);
    return found;
}

json_t *find_checkpoint(struct client *c, const char *name, struct err *e)
{
    return strncmp(name, "weaver://", 9) == 0 ? by_path(c, name, e) : by_id(c, name, e);
}
