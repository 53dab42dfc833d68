/* service/batch_runner.h - the thread that works on batches.
 *
 * One pass: expired files are removed when it is time; batches that were cancelled, have expired or
 * are through are ended; new ones are validated; then the oldest batch that may run gets one chunk.
 * So a new batch is validated between two chunks of another, and a batch that waits holds up
 * nobody. */
#ifndef SERVICE_BATCH_RUNNER_H
#define SERVICE_BATCH_RUNNER_H

void *batch_runner(void *batches); /* until the batches are stopping */
#endif
