#include "store/leftovers.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"

enum { LEFT_MOST = 4096 }; /* of a disk that takes no removal at all */

struct leftover {
    struct leftover *next;
    int dir_fd;
    char path[];
};

struct leftovers {
    pthread_mutex_t lock;
    struct leftover *first;
    int n;
};

struct leftovers *leftovers_new(struct err *e)
{
    struct leftovers *l = calloc(1, sizeof *l);

    if (!l) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

static void free_one(struct leftover *x)
{
    fs_close(x->dir_fd);
    free(x);
}

void leftovers_free(struct leftovers *l)
{
    if (!l)
        return;
    while (l->first) {
        struct leftover *x = l->first;

        l->first = x->next;
        free_one(x);
    }
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* Consumes x. */
static void put(struct leftovers *l, struct leftover *x)
{
    bool room;

    pthread_mutex_lock(&l->lock);
    room = l->n < LEFT_MOST;
    if (room) {
        x->next = l->first;
        l->first = x;
        l->n++;
    }
    pthread_mutex_unlock(&l->lock);
    if (!room)
        free_one(x);
}

static void note(struct leftovers *l, int dir_fd, const char *path)
{
    size_t n = strlen(path) + 1;
    struct leftover *x = malloc(sizeof *x + n);

    if (!x)
        return;
    x->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    memcpy(x->path, path, n);
    if (x->dir_fd >= 0)
        put(l, x);
    else
        free(x);
}

int leftovers_remove(struct leftovers *l, int dir_fd, const char *path, struct err *e)
{
    if (fs_remove_tree(dir_fd, path, e) == 0)
        return 0;
    if (l)
        note(l, dir_fd, path);
    return -1;
}

static struct leftover *take_all(struct leftovers *l)
{
    struct leftover *all;

    pthread_mutex_lock(&l->lock);
    all = l->first;
    l->first = NULL;
    l->n = 0;
    pthread_mutex_unlock(&l->lock);
    return all;
}

int leftovers_retry(struct leftovers *l, int *left)
{
    struct leftover *all = l ? take_all(l) : NULL;
    int gone = 0;

    *left = 0;
    while (all) {
        struct leftover *x = all;
        struct err ignored = {0};

        all = x->next;
        if (fs_remove_tree(x->dir_fd, x->path, &ignored) == 0) {
            free_one(x);
            gone++;
        } else {
            put(l, x);
            ++*left;
        }
    }
    return gone;
}
