/* service/core_loan.h - a core for a background job, only while requests are running.
 *
 * While the engine is idle the job uses whatever cores there are; while requests run it takes the
 * one core that the pool lends, and the job's helper follows (store/ring.h). A step that computes
 * much takes the core back for a part of its time (CAIRN_BACKGROUND_SHARE): core_loan_update waits
 * for it. core_loan_update before the job and every 0.1 ms in it, core_loan_end after it, all from
 * the job's thread; core_loan_wait from a helper before work of its own. */
#ifndef SERVICE_CORE_LOAN_H
#define SERVICE_CORE_LOAN_H

#include <stdbool.h>
#include <stdint.h>

struct engine;

struct core_loan {
    struct engine *engine;
    bool held;
    int64_t looked_ns; /* when the engine was last asked whether requests run */
};

void core_loan_update(struct core_loan *l);
void core_loan_end(struct core_loan *l);
void core_loan_wait(struct core_loan *l);
#endif
