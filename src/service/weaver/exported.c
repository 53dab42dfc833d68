#include "service/weaver/exported.h"

#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "model/adapter.h"
#include "service/weaver/impl.h"

static const int64_t keep_ns = INT64_C(60) * 1000000000;

static void clear(struct w_exported *x)
{
    adapter_unref(x->adapter);
    *x = (struct w_exported){0};
}

void w_exported_keep(struct weaver *w, const char *checkpoint_id, struct adapter *a)
{
    struct w_exported *oldest = w->exported;

    if (!a)
        return;
    pthread_mutex_lock(&w->lock);
    for (struct w_exported *x = w->exported; x < w->exported + EXPORTED_MAX; x++)
        if (x->at_ns < oldest->at_ns)
            oldest = x;
    clear(oldest);
    str_copy(oldest->checkpoint_id, sizeof oldest->checkpoint_id, checkpoint_id);
    oldest->adapter = adapter_ref(a);
    oldest->at_ns = clock_mono_ns();
    pthread_mutex_unlock(&w->lock);
}

struct adapter *w_exported_take(struct weaver *w, const char *checkpoint_id)
{
    struct adapter *a = NULL;

    pthread_mutex_lock(&w->lock);
    for (struct w_exported *x = w->exported; x < w->exported + EXPORTED_MAX && !a; x++)
        if (x->adapter && strcmp(x->checkpoint_id, checkpoint_id) == 0)
            a = adapter_ref(x->adapter);
    pthread_mutex_unlock(&w->lock);
    return a;
}

void w_exported_sweep(struct weaver *w)
{
    int64_t before = clock_mono_ns() - keep_ns;

    pthread_mutex_lock(&w->lock);
    for (struct w_exported *x = w->exported; x < w->exported + EXPORTED_MAX; x++)
        if (x->adapter && x->at_ns < before)
            clear(x);
    pthread_mutex_unlock(&w->lock);
}

void w_exported_free(struct weaver *w)
{
    for (struct w_exported *x = w->exported; x < w->exported + EXPORTED_MAX; x++)
        clear(x);
}
