#include "service/resident.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image_bank.h"
#include "service/leases.h"
#include "service/op.h"
#include "service/refusal.h"
#include "service/row_status.h"
#include "service/service.h"
#include "service/state.h"
#include "store/catalogue.h"

struct served *resident_of_row(const struct model_row *row)
{
    struct served made = {.row_id = row->id, .checkpoint = row->checkpoint};

    str_copy(made.name, sizeof made.name, row->name);
    str_copy(made.base_model, sizeof made.base_model, row->repo_id ? row->repo_id : row->name);
    return served_new(&made);
}

void resident_log_discarded(const struct served *now)
{
    if (now && now->commits > 0)
        log_ev(LOG_WARNING, "weights_discarded", "model=\"%s\" commits=%" PRId64, now->name,
               now->commits);
}

/* Weights and record both come anew: what was beside the old ones goes with them. */
static void drop_adapter(struct service *s)
{
    s->weights->adapter = (struct applied_adapter){0};
    engine_set_adapter(s->engine, NULL);
}

void resident_remove_adapter(struct service *s)
{
    struct served *now = engine_served(s->engine), *next = NULL;

    if (!s->weights->adapter.any)
        return;
    drop_adapter(s);
    if (now && (next = served_new(now))) {
        next->adapter[0] = '\0';
        engine_set_served(s->engine, next);
    } else if (now) {
        log_ev(LOG_ERROR, "adapter_name", "cause=\"out of memory: the status still names it\"");
    }
}

static void count_load(struct service *s, struct served *served)
{
    struct weights_state *w = s->weights;

    w->load_counter++;
    if (served)
        served->load_counter = w->load_counter;
    w->steps_since_load = 0;
    w->condition = WEIGHTS_CLEAN;
    w->commit = (struct commit){0};
}

void resident_become(struct service *s, struct image *im, struct served *served, enum residency how)
{
    if (how == OTHER_MODEL)
        leases_end_resident(s->leases);
    drop_adapter(s);
    count_load(s, served);
    s->weights->generation++;
    if (engine_resident(s->engine)) /* a swap: from now on one block stays as the spare */
        image_bank_keep_spare(engine_bank(s->engine));
    engine_set_resident(s->engine, im, served);
}

void resident_rewritten(struct service *s, struct served *served)
{
    drop_adapter(s);
    count_load(s, served);
    engine_set_served(s->engine, served);
}

void resident_drop(struct service *s)
{
    leases_end_resident(s->leases);
    drop_adapter(s);
    s->weights->load_counter++;
    engine_set_resident(s->engine, NULL, NULL);
}

int resident_wait_room(struct service *s, struct refusal *r)
{
    int most = s->settings->max_images > 2 ? s->settings->max_images - 2 : 0;
    double timeout = s->settings->graceful_unload_timeout_s;

    /* The resident becomes an old image by the swap: so at most max - 2 old ones before it. */
    if (engine_wait_images(s->engine, most, (int64_t)(timeout * 1000)))
        return 0;
    return refuse_drain(s, timeout, r);
}

static bool is_resident(struct service *s, int64_t row)
{
    struct served *now = engine_peek_served(s->engine);
    bool yes = now && now->row_id == row;

    served_unref(now);
    return yes;
}

/* Another load may come between the look and the note: then this one looks again, and that one
 * notes, too. The last note of a row is what it is. */
static void note(struct service *s, int64_t row)
{
    bool resident;

    if (!row)
        return;
    do {
        resident = is_resident(s, row);
        row_status_note(s, row, resident ? MODEL_LOADED : MODEL_READY, NULL);
    } while (is_resident(s, row) != resident);
}

void resident_note_rows(struct service *s, int64_t old_row, int64_t new_row)
{
    if (old_row != new_row)
        note(s, old_row);
    note(s, new_row);
}
