#include "service/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/nomem.h"

enum { JOB_STACK = 1 << 20 };

struct jobs {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int running;
};

struct job {
    struct jobs *set;
    void (*fn)(void *arg);
    void *arg;
};

struct jobs *jobs_new(struct err *e)
{
    struct jobs *j = calloc(1, sizeof *j);

    if (!j) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->idle, NULL);
    return j;
}

static void count(struct jobs *j, int change)
{
    pthread_mutex_lock(&j->lock);
    j->running += change;
    if (j->running == 0)
        pthread_cond_broadcast(&j->idle);
    pthread_mutex_unlock(&j->lock);
}

static void *run(void *arg)
{
    struct job job = *(struct job *)arg;

    free(arg);
    nomem_set_aside(NOMEM_ANSWER); /* what it has done it can tell */
    job.fn(job.arg);
    nomem_let_go();
    count(job.set, -1);
    return NULL;
}

int jobs_start(struct jobs *j, void (*fn)(void *arg), void *arg, struct err *e)
{
    struct job *job = malloc(sizeof *job);
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    if (!job)
        return err_nomem(e);
    *job = (struct job){j, fn, arg};
    count(j, 1);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, JOB_STACK);
    rc = pthread_create(&thread, &attr, run, job);
    pthread_attr_destroy(&attr);
    if (rc == 0)
        return 0;
    count(j, -1);
    free(job);
    errno = rc;
    return err_io(e, "start a background thread");
}

void jobs_free(struct jobs *j)
{
    if (!j)
        return;
    pthread_mutex_lock(&j->lock);
    while (j->running > 0)
        pthread_cond_wait(&j->idle, &j->lock);
    pthread_mutex_unlock(&j->lock);
    pthread_cond_destroy(&j->idle);
    pthread_mutex_destroy(&j->lock);
    free(j);
}
