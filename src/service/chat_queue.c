#include "service/chat_queue.h"

#include <stdlib.h>
#include <string.h>

#include "engine/image.h"
#include "engine/served.h"

void chat_queue_init(struct chat_queue *q)
{
    *q = (struct chat_queue){0};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->came, NULL);
}

static bool make_room(struct chat_queue *q, size_t n)
{
    size_t cap = q->cap ? q->cap : 4096;
    char *grown;

    if (q->taken == q->len)
        q->taken = q->len = 0;
    while (q->len + n > cap)
        cap *= 2;
    if (cap == q->cap)
        return true;
    grown = realloc(q->bytes, cap);
    if (!grown)
        return false;
    q->bytes = grown;
    q->cap = cap;
    return true;
}

/* The lock is held. */
static void append(struct chat_queue *q, const struct gen_event *ev)
{
    size_t tops = (size_t)ev->n_top * sizeof *ev->top;

    if (q->failed || !make_room(q, sizeof *ev + tops)) {
        q->failed = true;
    } else {
        memcpy(q->bytes + q->len, ev, sizeof *ev);
        if (tops)
            memcpy(q->bytes + q->len + sizeof *ev, ev->top, tops);
        q->len += sizeof *ev + tops;
        if (ev->served)
            served_ref(ev->served);
        if (ev->image)
            image_ref(ev->image);
    }
}

/* Whoever waits is woken when the lock is free: it would wake only to wait for it. After the last
 * event the queue may be gone as soon as the lock is. */
void chat_queue_put(struct chat_queue *q, const struct gen_event *ev)
{
    bool last = ev->kind >= GEN_DONE;

    pthread_mutex_lock(&q->lock);
    append(q, ev);
    q->over = q->over || last;
    if (last)
        pthread_cond_signal(&q->came);
    pthread_mutex_unlock(&q->lock);
    if (!last)
        pthread_cond_signal(&q->came);
}

static void take_next(struct chat_queue *q, struct chat_event *out)
{
    size_t tops;

    memcpy(&out->ev, q->bytes + q->taken, sizeof out->ev);
    tops = (size_t)out->ev.n_top * sizeof *out->top;
    if (tops)
        memcpy(out->top, q->bytes + q->taken + sizeof out->ev, tops);
    out->ev.top = out->top;
    q->taken += sizeof out->ev + tops;
}

bool chat_queue_take(struct chat_queue *q, struct chat_event *out)
{
    bool ok;

    pthread_mutex_lock(&q->lock);
    while (q->taken == q->len && !q->failed)
        pthread_cond_wait(&q->came, &q->lock);
    ok = !q->failed;
    if (ok)
        take_next(q, out);
    pthread_mutex_unlock(&q->lock);
    return ok;
}

void chat_queue_wait_over(struct chat_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (!q->over)
        pthread_cond_wait(&q->came, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void chat_queue_release(struct chat_queue *q)
{
    struct chat_event left;

    while (q->taken < q->len) {
        take_next(q, &left);
        served_unref(left.ev.served);
        image_unref(left.ev.image);
    }
    free(q->bytes);
    pthread_cond_destroy(&q->came);
    pthread_mutex_destroy(&q->lock);
}
