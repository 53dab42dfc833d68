#include "engine/bus_guard.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

enum { RANGES = 16 };

/* base is written last and cleared first: the handler skips a range whose base is 0. */
struct range {
    _Atomic uintptr_t base;
    _Atomic size_t bytes;
    atomic_bool hit;
    atomic_bool taken;
};

static struct range ranges[RANGES];
static _Atomic size_t page_bytes;

/* Async-signal-safe: atomics and mmap only. */
static bool mend(uintptr_t at)
{
    size_t page = atomic_load(&page_bytes);

    for (int i = 0; i < RANGES; i++) {
        uintptr_t base = atomic_load(&ranges[i].base);

        if (base == 0 || at < base || at - base >= atomic_load(&ranges[i].bytes))
            continue;
        atomic_store(&ranges[i].hit, true);
        return mmap((void *)(at / page * page), page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int signo, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code == BUS_ADRERR && mend((uintptr_t)info->si_addr))
        return;
    signal(signo, SIG_DFL); /* the instruction runs again and ends the process */
}

/* For every range anew: whoever has set a handler since does not know of the range. */
static void install(void)
{
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    atomic_store(&page_bytes, (size_t)sysconf(_SC_PAGESIZE));
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}

int bus_guard_add(void *base, size_t bytes, struct err *e)
{
    install();
    for (int i = 0; i < RANGES; i++) {
        bool no = false;

        if (!atomic_compare_exchange_strong(&ranges[i].taken, &no, true))
            continue;
        atomic_store(&ranges[i].hit, false);
        atomic_store(&ranges[i].bytes, bytes);
        atomic_store(&ranges[i].base, (uintptr_t)base);
        return i;
    }
    return err_set(e, ERR_SPACE, "%d shared arenas are alive already", RANGES);
}

bool bus_guard_hit(int slot)
{
    return slot >= 0 && atomic_load(&ranges[slot].hit);
}

void bus_guard_remove(int slot)
{
    if (slot < 0)
        return;
    atomic_store(&ranges[slot].base, 0);
    atomic_store(&ranges[slot].taken, false);
}
