/* api/openai/batch_row.h - a row of a batch, answered by its endpoint as a request would be. */
#ifndef API_OPENAI_BATCH_ROW_H
#define API_OPENAI_BATCH_ROW_H

#include "service/batches.h"

batch_row_fn openai_batch_row; /* arg: struct api. Any thread. */
#endif
