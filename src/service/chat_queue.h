/* service/chat_queue.h - events of one request on their way from the engine thread to its handler.
 *
 * The engine thread puts, one handler thread takes. Memory is bounded by the tokens that the
 * request may generate. */
#ifndef SERVICE_CHAT_QUEUE_H
#define SERVICE_CHAT_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/engine.h"
#include "service/chat.h"

struct image;
struct served;

struct chat_event {
    struct gen_event
        ev; /* top points to `top`; served and image of GEN_ADMITTED are counted for the taker */
    struct gen_top top[CHAT_TOP_MAX];
};

struct chat_queue {
    pthread_mutex_t lock;
    pthread_cond_t came;
    char *bytes; /* events one behind the other, without unused `top` entries */
    size_t len, cap, taken;
    bool failed; /* out of memory: the request must end */
    bool over;   /* the engine has told its last event */
};

void chat_queue_init(struct chat_queue *q);
void chat_queue_put(struct chat_queue *q, const struct gen_event *ev);
/* Waits for the next event. false: one was lost for want of memory; then cancel, and wait until it
 * is over. */
bool chat_queue_take(struct chat_queue *q, struct chat_event *out);
void chat_queue_wait_over(struct chat_queue *q);
void chat_queue_release(struct chat_queue *q);
#endif
