/* service/weaver/sample_write.c - what was gathered, as it is answered. */
#include <string.h>

#include "base/json.h"
#include "service/weaver/samplers.h"
#include "service/weaver/samples.h"

static void write_tokens(struct buf *b, const struct sample_sequence *s)
{
    buf_add_str(b, "\"tokens\":[");
    for (int i = 0; i < s->n; i++)
        buf_printf(b, i ? ",%d" : "%d", (int)s->tokens[i]);
    buf_add_char(b, ']');
}

static void write_floats(struct buf *b, const char *key, const float *v, int n)
{
    buf_printf(b, ",\"%s\":[", key);
    for (int i = 0; i < n; i++)
        buf_printf(b, i ? ",%.9g" : "%.9g", (double)v[i]);
    buf_add_char(b, ']');
}

/* One row of the head a token: ids, values, and a mask that is all ones. */
static void write_head(struct buf *b, const struct sample_op *x, const struct sample_sequence *s)
{
    static const char *const keys[] = {"sampler_topk_ids", "sampler_topk_logprobs",
                                       "sampler_topk_mask"};
    int k = x->p.head;

    write_floats(b, "sampler_logprobs", s->logprobs, s->n);
    for (int what = 0; what < 3; what++) {
        buf_printf(b, ",\"%s\":[", keys[what]);
        for (int i = 0; i < s->n; i++) {
            buf_add_str(b, i ? ",[" : "[");
            for (int j = 0; j < k; j++) {
                const struct gen_top *t = &s->head[i * k + j];

                if (j)
                    buf_add_char(b, ',');
                if (what == 1)
                    buf_printf(b, "%.9g", (double)t->logprob);
                else
                    buf_printf(b, "%d", what == 0 ? (int)t->token : 1);
            }
            buf_add_char(b, ']');
        }
        buf_add_char(b, ']');
    }
}

static const char *version_of(const struct sample_op *x)
{
    return *x->sampler->checkpoint_id ? x->sampler->checkpoint_id : "base";
}

static const char *reason_of(const struct sample_sequence *s)
{
    if (!s->ended)
        return "abort";
    return s->reason == GEN_LENGTH && !s->cut ? "length" : "stop";
}

static void write_sequence(struct buf *b, const struct sample_op *x, struct sample_sequence *s)
{
    if (!s->cut) { /* what was held back belongs to the text after all */
        if (s->decode.tokenizer)
            decode_stream_flush(&s->decode, &s->decoded);
        s->cut = stop_push(&s->stop, buf_str(&s->decoded), s->decoded.len, &s->text);
        if (!s->cut)
            stop_flush(&s->stop, &s->text);
    }
    buf_add_char(b, '{');
    write_tokens(b, s);
    buf_add_str(b, ",\"text\":");
    json_write_str(b, buf_str(&s->text), s->text.len);
    buf_printf(b, ",\"stop_reason\":\"%s\"", reason_of(s));
    write_floats(b, "logprobs", s->logprobs, s->n);
    if (x->p.old_logprobs)
        write_floats(b, "old_logprobs", s->old, s->n);
    if (x->p.masks)
        buf_printf(b, ",\"sampling_masks\":[%s]", buf_str(&s->masks));
    if (x->p.head) {
        write_head(b, x, s);
        buf_printf(b,
                   ",\"sampler_distribution\":{\"schema\":\"behavior/unfiltered/v1\","
                   "\"weight_version\":\"%s\"}",
                   version_of(x));
    }
    if (x->p.experts)
        buf_add_str(b, ",\"moe_topk_indices\":null");
    buf_printf(b, ",\"weight_version\":\"%s\"}", version_of(x));
}

static void write_prompt(struct buf *b, const struct sample_op *x)
{
    buf_add_str(b, "\"prompt_logprobs\":[null");
    for (int i = 1; i < x->n_prompt; i++)
        buf_printf(b, ",%.9g", (double)x->prompt_logprobs[i]);
    buf_add_char(b, ']');
}

static void write_prompt_tops(struct buf *b, const struct sample_op *x)
{
    buf_add_str(b, "\"topk_prompt_logprobs\":[null");
    for (int i = 1; i < x->n_prompt; i++) {
        const struct gen_top *t = x->prompt_tops + (ptrdiff_t)i * x->p.prompt_top;

        buf_add_str(b, ",[");
        for (int j = 0; j < x->n_prompt_tops[i]; j++)
            buf_printf(b, j ? ",[%d,%.9g]" : "[%d,%.9g]", (int)t[j].token, (double)t[j].logprob);
        buf_add_char(b, ']');
    }
    buf_add_char(b, ']');
}

static void write_samples(struct buf *b, const struct sample_op *x)
{
    bool scored = x->prompt_seen == x->n_prompt; /* an abort may come before */
    int made = 0;

    buf_add_str(b, "\"sequences\":[");
    for (int i = 0; i < x->p.copies; i++) {
        if (i)
            buf_add_char(b, ',');
        write_sequence(b, x, &x->sequences[i]);
        made += x->sequences[i].n;
        b->failed = b->failed || x->sequences[i].text.failed || x->sequences[i].masks.failed;
    }
    buf_add_str(b, "],");
    if (x->p.prompt_logprobs && scored)
        write_prompt(b, x);
    else
        buf_add_str(b, "\"prompt_logprobs\":null");
    buf_add_char(b, ',');
    if (x->p.prompt_top && scored)
        write_prompt_tops(b, x);
    else
        buf_add_str(b, "\"topk_prompt_logprobs\":null");
    buf_printf(b,
               ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d},"
               "\"weight_version\":\"%s\"",
               x->n_prompt, made, x->n_prompt + made, version_of(x));
}

void sample_write(const struct sample_op *x, struct buf *b)
{
    buf_add_str(b, "{\"result\":{");
    if (x->only_logprobs) {
        write_prompt(b, x);
        if (x->p.experts)
            buf_add_str(b, ",\"return_rollout_token_expert_data\":null");
    } else {
        write_samples(b, x);
    }
    buf_add_str(b, "}}");
}
