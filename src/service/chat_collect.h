/* service/chat_collect.h - gathers a whole answer: the sink of chat_run for everything that is not
 * streamed.
 *
 * Order: collect_sink, chat_run with it, collect_choose_best, read, collect_release (also after a
 * refusal). */
#ifndef SERVICE_CHAT_COLLECT_H
#define SERVICE_CHAT_COLLECT_H

#include <stdbool.h>

#include "base/buf.h"
#include "service/chat.h"

struct collected_call {
    char *name, *arguments; /* owned; arguments: a JSON object as text */
};

struct collected_choice {
    struct buf text;
    struct collected_call *calls;
    int n_calls;
    struct chat_token *tokens;
    int n_tokens, cap_tokens;
    enum chat_finish finish;
    double mean_logprob; /* of the generated tokens, after collect_choose_best */
};

struct collected {
    struct served *served; /* counted; NULL: never started */
    struct image *image;   /* counted */
    struct collected_choice *choices;
    int n_choices;
    bool failed; /* out of memory */
};

struct chat_sink collect_sink(struct collected *c); /* *c must be zeroed */
/* Of each group of best_of choices keeps the n with the highest mean log-probability, best first.
 */
void collect_choose_best(struct collected *c, int n, int best_of);
void collect_release(struct collected *c);
#endif
