/* api/openai/ask_rules.c - rules that chat and completions share. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "api/openai/ask.h"
#include "base/json.h"
#include "http/request.h"

enum { ALLOWED_MAX = 1024, BIAS_MAX = 1024 };

static const float TEMPERATURE_GREEDY = 1e-5f; /* below it, softmax is the argmax */

/* ---- numbers with rules of their own ---- */

static bool take_limit(struct ask *a, const char *name, int64_t least, int64_t *out)
{
    const json_t *v = field(a, name);

    if (!v)
        return false;
    if (!json_is_number(v) || !json_is_whole(v, out) || *out < least || *out > INT32_MAX) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, name, "%s must be a whole number of at least %d.",
                name, (int)least);
        return false;
    }
    return true;
}

static void parse_max_tokens(struct ask *a)
{
    int64_t old = 0, new = 0;
    bool has_old = take_limit(a, "max_tokens", a->job.echo ? 0 : 1, &old);
    bool has_new = take_limit(a, "max_completion_tokens", a->job.echo ? 0 : 1, &new);

    if (has_old && has_new && old != new)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "max_tokens",
                "max_tokens and max_completion_tokens mean the same and differ.");
    if (!has_old && !has_new)
        return;
    a->job.max_tokens = (int)(has_old ? old : new);
    a->job.max_tokens_field = has_old ? "max_tokens" : "max_completion_tokens";
}

static void parse_seed(struct ask *a)
{
    const json_t *v = field(a, "seed");

    if (!v)
        return;
    if (!json_is_integer(v) || json_integer_value(v) < 0) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "seed",
                "seed must be a whole number from 0 to 9223372036854775807.");
        return;
    }
    a->job.has_seed = true;
    a->job.seed = (uint64_t)json_integer_value(v);
}

/* ---- stops ---- */

static void add_stop(struct ask *a, const json_t *v)
{
    size_t len = json_string_length(v);

    if (!json_is_string(v) || len == 0 || len > STOP_BYTES_MAX)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "stop",
                "stop must be a string of 1 to %d bytes, or a list of at most %d of them.",
                STOP_BYTES_MAX, STOP_STRINGS_MAX);
    else
        a->job.stops[a->job.n_stops++] =
            (struct stop_string){.text = json_string_value(v), .len = len};
}

static void parse_stop(struct ask *a)
{
    const json_t *v = field(a, "stop");

    if (!v)
        return;
    if (!json_is_array(v)) {
        add_stop(a, v);
        return;
    }
    if (json_array_size(v) > STOP_STRINGS_MAX) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "stop", "stop may hold at most %d strings.",
                STOP_STRINGS_MAX);
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++)
        add_stop(a, json_array_get(v, i));
}

/* ---- logit_bias: {"<token id>": -100..100} ---- */

static bool parse_bias_id(const char *s, int32_t *id)
{
    size_t digits = strspn(s, "0123456789");

    if (digits == 0 || digits > 9 || s[digits])
        return false;
    *id = (int32_t)strtol(s, NULL, 10);
    return true;
}

static void parse_bias(struct ask *a)
{
    const json_t *v = field(a, "logit_bias");
    size_t n = json_object_size(v);
    struct gen_bias *list;
    const char *key;
    json_t *value;

    if (!v || (json_is_object(v) && n == 0))
        return;
    list = n <= BIAS_MAX ? arena_alloc(&a->arena, (n ? n : 1) * sizeof *list) : NULL;
    if (!json_is_object(v) || !list) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "logit_bias",
                "logit_bias must be an object of at most %d token ids and numbers.", BIAS_MAX);
        return;
    }
    json_object_foreach ((json_t *)v, key, value) {
        struct gen_bias *one = &list[a->job.n_bias];
        double x = json_number_value(value);

        if (!parse_bias_id(key, &one->token) || !json_is_number(value) || !(fabs(x) <= 100)) {
            problem(a, REFUSAL_V1_INVALID_PARAMETER, "logit_bias",
                    "logit_bias maps token ids to numbers from -100 to 100.");
            return;
        }
        one->bias = (float)x;
        a->job.n_bias++;
    }
    a->job.bias = list;
}

/* ---- stream options and headers ---- */

static void parse_stream_options(struct ask *a)
{
    const json_t *v = field(a, "stream_options");
    const json_t *usage = json_object_get(v, "include_usage");

    if (!v)
        return;
    if (!json_is_object(v) || (usage && !json_is_boolean(usage) && !json_is_null(usage)))
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "stream_options",
                "stream_options must be an object; its include_usage is true or false.");
    ask_ignore_others(a, "stream_options", v, "include_usage");
    a->include_usage = json_is_true(usage);
    if (a->include_usage && !a->stream)
        ask_ignore(a, "stream_options.include_usage");
}

void parse_load_policy(struct ask *a)
{
    const char *v = http_req_header(a->call->req, "X-miLLM-Load-Policy");

    a->job.ask.policy = LOAD_POLICY_AUTO;
    if (v && strcasecmp(v, "refuse") == 0)
        a->job.ask.policy = LOAD_POLICY_REFUSE;
    else if (v && strcasecmp(v, "auto") != 0)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "X-miLLM-Load-Policy",
                "X-miLLM-Load-Policy must be auto or refuse.");
}

/* Strict: what would be reported is refused, all of it in one sentence. */
static void refuse_ignored(struct ask *a)
{
    struct buf names = {0};
    size_t n = json_array_size(a->ignored);

    for (size_t i = 0; i < n && names.len < REFUSAL_MESSAGE_MAX / 4; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", json_string_value(json_array_get(a->ignored, i)));
    problem(a, REFUSAL_V1_UNUSED_FIELDS_REFUSED, json_string_value(json_array_get(a->ignored, 0)),
            "The request holds %zu fields that this server does not use: %s.", n, buf_str(&names));
    buf_release(&names);
}

static void apply_strictness(struct ask *a)
{
    const char *v = http_req_header(a->call->req, "X-miLLM-Strict");
    bool strict = v && (strcasecmp(v, "true") == 0 || strcmp(v, "1") == 0);

    if (v && !strict && strcasecmp(v, "false") != 0 && strcmp(v, "0") != 0)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "X-miLLM-Strict",
                "X-miLLM-Strict must be true, 1, false or 0.");
    if (strict && json_array_size(a->ignored))
        refuse_ignored(a);
}

/* ---- combinations ---- */

static void check_choices(struct ask *a)
{
    int64_t prompts = a->job.n_conversations ? a->job.n_conversations : a->job.n_prompts;

    if (a->job.best_of == 0)
        a->job.best_of = a->job.n;
    if (a->job.best_of < a->job.n)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "best_of", "best_of must be at least n.");
    if (a->stream && a->job.best_of > a->job.n)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "best_of",
                "best_of above n cannot be streamed: the best is known at the end.");
    if (prompts * a->job.best_of > CHAT_CHOICES_MAX)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, a->job.best_of > 1 ? "n" : "prompt",
                "One request may have at most %d choices.", CHAT_CHOICES_MAX);
}

/* Scoring (section 7.3): one token, and its log-probability under the temperature and the allowed
 * set. Limits of sampling do not apply. */
void ask_scoring_rules(struct ask *a)
{
    struct chat_job *job = &a->job;
    bool wanted = (a->logprobs || job->allowed) && job->max_tokens == 1 && !job->echo;

    if (!wanted)
        return;
    if (job->n != 1 || job->best_of > 1)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "n",
                "A request that scores one token has one choice.");
    if (a->stream)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "stream",
                "A request that scores one token cannot be streamed.");
    if (job->grammar || job->tools.choice == TOOL_CHOICE_REQUIRED)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, job->grammar ? "response_format" : "tool_choice",
                "A request that scores one token asks for no form of the answer.");
    if (job->temperature > 0 && job->temperature < 0.001f)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "temperature",
                "To score a token, temperature must be 0 or at least 0.001.");
    job->score = true;
    job->needs_template = true;
    job->top_p = 1;
    job->min_p = 0;
    job->top_k = 0;
    job->frequency_penalty = job->presence_penalty = 0;
    job->repetition_penalty = 1;
    job->n_stops = 0;
}

void ask_common(struct ask *a, enum endpoint where)
{
    fields_check(a, where);
    parse_max_tokens(a);
    parse_seed(a);
    parse_stop(a);
    parse_bias(a);
    parse_stream_options(a);
    parse_token_ids(a, "allowed_token_ids", ALLOWED_MAX, &a->job.allowed, &a->job.n_allowed);
    parse_token_ids(a, "stop_token_ids", CHAT_STOP_IDS_MAX, &a->job.stop_ids, &a->job.n_stop_ids);
    parse_load_policy(a);
}

/* The first finding speaks, and says how many more there are. */
int ask_verdict(struct ask *a, struct refusal *r)
{
    struct refusal *first = &a->problems.first;

    apply_strictness(a);
    if (a->problems.n == 0)
        return 0;
    if (a->problems.n == 1)
        return refuse_param(r, first->code, first->param, "%s", first->message);
    return refuse_param(r, first->code, first->param, "%s %d more %s wrong.", first->message,
                        a->problems.n - 1, a->problems.n == 2 ? "field is" : "fields are");
}

int ask_finish(struct ask *a, struct refusal *r)
{
    check_choices(a);
    ask_scoring_rules(a);
    if (a->job.temperature < TEMPERATURE_GREEDY)
        a->job.temperature = 0;
    return ask_verdict(a, r);
}
