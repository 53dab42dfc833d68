#include "service/core_loan.h"

#include "base/clock.h"
#include "base/pool.h"
#include "engine/engine.h"

enum { LOOK_NS = 2 * 1000 * 1000 };

void core_loan_wait(struct core_loan *l)
{
    pool_rest(engine_pool(l->engine));
}

void core_loan_update(struct core_loan *l)
{
    int64_t now = clock_mono_ns();

    core_loan_wait(l);
    if (l->looked_ns && now - l->looked_ns < LOOK_NS)
        return;
    l->looked_ns = now;
    if (engine_slots(l->engine) == 0)
        core_loan_end(l);
    else if (!l->held)
        l->held = pool_borrow(engine_pool(l->engine));
}

void core_loan_end(struct core_loan *l)
{
    if (l->held)
        pool_give_back(engine_pool(l->engine));
    l->held = false;
}
