#include "service/core_loan.h"

#include "base/pool.h"
#include "engine/engine.h"

void core_loan_update(struct core_loan *l)
{
    struct engine_stats stats;

    engine_get_stats(l->engine, &stats);
    if (stats.running == 0)
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
