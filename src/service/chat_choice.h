/* service/chat_choice.h - the text of one choice, token by token.
 *
 * Bytes become whole characters (text/decode_stream.h), then stop strings are looked for
 * (generate/stop.h), then calls of tools (text/tool_call.h). What is certain goes to the sink
 * together with the tokens since the last call.
 */
#ifndef SERVICE_CHAT_CHOICE_H
#define SERVICE_CHAT_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "generate/stop.h"
#include "service/chat.h"
#include "text/decode_stream.h"
#include "text/tool_call.h"

struct choice {
    int index;
    const struct chat_sink *sink;
    const struct chat_job *job;
    struct decode_stream decode;
    struct stop_search stop;
    struct buf decoded, ready; /* scratch of one token; certain text that has not been told */
    struct chat_token *tokens; /* owned: those that have not been told */
    int n_tokens, cap_tokens;
    int64_t characters; /* of the text so far, held ones not counted */
    int n_generated;
    struct tool_reader tools; /* form TOOLS_NONE: not used */
    int n_calls;
    bool ended;  /* a stop string was found, or the sequence is done */
    bool failed; /* out of memory */
};

void choice_init(struct choice *c, int index, const struct chat_job *job,
                 const struct chat_sink *sink, const struct tokenizer *t, enum tool_form form);
/* A token of the echoed prompt; `silent`: it is not in the text (BOS in front of it). */
void choice_add_prompt(struct choice *c, const struct gen_event *ev, bool silent);
void choice_prompt_done(struct choice *c);
/* A generated token. true: a stop string is complete, or the only call; the sequence can be cut. */
bool choice_add(struct choice *c, const struct gen_event *ev, bool is_end);
void choice_finish(struct choice *c, enum chat_finish why);
void choice_release(struct choice *c);
#endif
