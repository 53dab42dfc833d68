/* service/core_loan.h - a core for a background job, only while requests are running.
 *
 * While the engine is idle the job uses whatever cores there are; while requests run it takes the
 * one core that the pool lends, and the job's helper follows (store/ring.h). core_loan_update
 * before the job and every few milliseconds in it, core_loan_end after it, all from the job's
 * thread. */
#ifndef SERVICE_CORE_LOAN_H
#define SERVICE_CORE_LOAN_H

#include <stdbool.h>

struct engine;

struct core_loan {
    struct engine *engine;
    bool held;
};

void core_loan_update(struct core_loan *l);
void core_loan_end(struct core_loan *l);
#endif
