#include "cli/find_row.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/client.h"

int find_row(struct client *c, const char *which, int64_t *id, struct err *e)
{
    json_t *rows, *row;
    char *end;
    size_t i;
    int rc = -1;

    errno = 0;
    *id = strtoll(which, &end, 10);
    if (*which && !*end && !errno)
        return 0;
    rows = client_data(c, "GET", "/api/models", NULL, e);
    if (!rows)
        return -1;
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));

        if (name && !strcmp(name, which)) {
            *id = json_integer_value(json_object_get(row, "id"));
            rc = 0;
            break;
        }
    }
    json_decref(rows);
    if (rc < 0)
        err_set(e, ERR_NOT_FOUND, "no model is called %s; `cairn models` lists them", which);
    return rc;
}
