#include "base/faults.h"

#ifdef CAIRN_FAULTS
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct faults {
    const char *fail; /* borrowed from the environment; NULL: none */
    atomic_bool fail_spent;
    long write_delay_ms;
    long verify_delay_ms;
    long read_delay_ms;
    long predecessor_ms; /* 0: not set */
    long idle_ms;        /* 0: not set */
    bool mem_set;
    int64_t mem_available; /* -1: unknown */
};

static long env_ms(const char *name)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : 0;
}

struct faults *faults_from_env(void)
{
    const char *mem = getenv("WEIGHTS_TEST_MEM_AVAILABLE");
    struct faults *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    f->fail = getenv("WEIGHTS_TEST_FAIL");
    atomic_init(&f->fail_spent, false);
    f->write_delay_ms = env_ms("WEIGHTS_TEST_WRITE_DELAY_MS");
    f->verify_delay_ms = env_ms("WEIGHTS_TEST_VERIFY_DELAY_MS");
    f->read_delay_ms = env_ms("WEIGHTS_TEST_READ_DELAY_MS");
    f->predecessor_ms = env_ms("WEIGHTS_TEST_PREDECESSOR_MS");
    f->idle_ms = env_ms("WEIGHTS_TEST_IDLE_MS");
    f->mem_set = mem && *mem;
    if (f->mem_set)
        f->mem_available = strcmp(mem, "unknown") == 0 ? -1 : strtoll(mem, NULL, 10);
    return f;
}

void faults_free(struct faults *f)
{
    free(f);
}

bool faults_take(struct faults *f, const char *point)
{
    return f && f->fail && strcmp(f->fail, point) == 0 && !atomic_exchange(&f->fail_spent, true);
}

bool faults_take_count(struct faults *f, const char *point, int64_t *n)
{
    size_t len = strlen(point);

    if (!f || !f->fail || strncmp(f->fail, point, len) != 0 || f->fail[len] != ':')
        return false;
    if (atomic_exchange(&f->fail_spent, true))
        return false;
    *n = strtoll(f->fail + len + 1, NULL, 10);
    return true;
}

static void delay(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    if (ms > 0)
        nanosleep(&t, NULL);
}

void faults_write_delay(struct faults *f)
{
    if (f)
        delay(f->write_delay_ms);
}

void faults_verify_delay(struct faults *f)
{
    if (f)
        delay(f->verify_delay_ms);
}

void faults_read_delay(struct faults *f, const atomic_bool *end)
{
    enum { LOOK_MS = 10 };

    for (long ms = 0; f && ms < f->read_delay_ms && !atomic_load(end); ms += LOOK_MS)
        delay(LOOK_MS);
}

bool faults_mem_available(const struct faults *f, int64_t *bytes)
{
    if (!f || !f->mem_set)
        return false;
    *bytes = f->mem_available;
    return true;
}

int64_t faults_predecessor_ms(const struct faults *f, int64_t otherwise)
{
    return f && f->predecessor_ms > 0 ? f->predecessor_ms : otherwise;
}

int64_t faults_idle_ms(const struct faults *f, int64_t otherwise)
{
    return f && f->idle_ms > 0 ? f->idle_ms : otherwise;
}
#else
typedef int faults_are_left_out; /* a translation unit may not be empty */
#endif
