/* base/faults.h - fault points of test builds (make FAULTS=1); nothing at all in a release build.
 *
 * WEIGHTS_TEST_FAIL=<point> fails the first operation that reaches the point,
 * WEIGHTS_TEST_WRITE_DELAY_MS and WEIGHTS_TEST_VERIFY_DELAY_MS delay every save and load once,
 * WEIGHTS_TEST_READ_DELAY_MS each reading of weights after its first bytes,
 * WEIGHTS_TEST_MEM_AVAILABLE replaces a measured figure, WEIGHTS_TEST_PREDECESSOR_MS the time for
 * which a call of the training API waits for the one before it, WEIGHTS_TEST_IDLE_MS the times
 * after which weights that nobody uses are let go, and between looks for them. Read once at start
 * into a struct that its owner passes down; a NULL pointer means no faults. Each "take" is atomic:
 * with several threads exactly one gets it. */
#ifndef BASE_FAULTS_H
#define BASE_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct faults;

#ifdef CAIRN_FAULTS
struct faults *faults_from_env(void); /* owned; NULL: none set, or out of memory */
void faults_free(struct faults *f);
/* True once, when WEIGHTS_TEST_FAIL is exactly `point`. */
bool faults_take(struct faults *f, const char *point);
/* True once, when WEIGHTS_TEST_FAIL is "<point>:<n>"; *n is filled. */
bool faults_take_count(struct faults *f, const char *point, int64_t *n);
void faults_write_delay(struct faults *f);  /* sleeps for WEIGHTS_TEST_WRITE_DELAY_MS */
void faults_verify_delay(struct faults *f); /* sleeps for WEIGHTS_TEST_VERIFY_DELAY_MS */
/* Sleeps for WEIGHTS_TEST_READ_DELAY_MS, less when *end becomes true. */
void faults_read_delay(struct faults *f, const atomic_bool *end);
/* True when WEIGHTS_TEST_MEM_AVAILABLE is set: *bytes, or -1 for "unknown". */
bool faults_mem_available(const struct faults *f, int64_t *bytes);
/* WEIGHTS_TEST_PREDECESSOR_MS; `otherwise` when it is not set. */
int64_t faults_predecessor_ms(const struct faults *f, int64_t otherwise);
/* WEIGHTS_TEST_IDLE_MS; `otherwise` when it is not set. */
int64_t faults_idle_ms(const struct faults *f, int64_t otherwise);
#else
static inline struct faults *faults_from_env(void)
{
    return (struct faults *)0;
}
static inline void faults_free(struct faults *f)
{
    (void)f;
}
static inline bool faults_take(struct faults *f, const char *point)
{
    (void)f, (void)point;
    return false;
}
static inline bool faults_take_count(struct faults *f, const char *point, int64_t *n)
{
    (void)f, (void)point, (void)n;
    return false;
}
static inline void faults_write_delay(struct faults *f)
{
    (void)f;
}
static inline void faults_verify_delay(struct faults *f)
{
    (void)f;
}
static inline void faults_read_delay(struct faults *f, const atomic_bool *end)
{
    (void)f, (void)end;
}
static inline bool faults_mem_available(const struct faults *f, int64_t *bytes)
{
    (void)f, (void)bytes;
    return false;
}
static inline int64_t faults_predecessor_ms(const struct faults *f, int64_t otherwise)
{
    (void)f;
    return otherwise;
}
static inline int64_t faults_idle_ms(const struct faults *f, int64_t otherwise)
{
    (void)f;
    return otherwise;
}
#endif
#endif
