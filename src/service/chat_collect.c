#include "service/chat_collect.h"

#include <stdlib.h>
#include <string.h>

#include "engine/image.h"
#include "engine/served.h"

static void on_started(void *arg, const struct chat_start *start)
{
    struct collected *c = arg;

    c->choices = calloc((size_t)start->n_choices, sizeof *c->choices);
    c->n_choices = c->choices ? start->n_choices : 0;
    c->failed = !c->choices;
    c->served = served_ref((struct served *)start->served);
    c->image = image_ref((struct image *)start->image);
}

static bool add_tokens(struct collected_choice *ch, const struct chat_token *tokens, int n)
{
    if (ch->n_tokens + n > ch->cap_tokens) {
        int cap = 2 * ch->cap_tokens + n;
        struct chat_token *grown = realloc(ch->tokens, (size_t)cap * sizeof *grown);

        if (!grown)
            return false;
        ch->tokens = grown;
        ch->cap_tokens = cap;
    }
    if (n)
        memcpy(ch->tokens + ch->n_tokens, tokens, (size_t)n * sizeof *tokens);
    ch->n_tokens += n;
    return true;
}

static void on_piece(void *arg, int choice, const char *text, size_t len,
                     const struct chat_token *tokens, int n_tokens)
{
    struct collected *c = arg;

    if (c->failed)
        return;
    buf_add(&c->choices[choice].text, text, len);
    c->failed =
        !add_tokens(&c->choices[choice], tokens, n_tokens) || c->choices[choice].text.failed;
}

static void on_call(void *arg, int choice, const char *name, const char *arguments)
{
    struct collected *c = arg;
    struct collected_choice *ch = c->failed ? NULL : &c->choices[choice];
    struct collected_call *grown, *one;

    if (!ch)
        return;
    grown = realloc(ch->calls, (size_t)(ch->n_calls + 1) * sizeof *grown);
    if (!grown) {
        c->failed = true;
        return;
    }
    ch->calls = grown;
    one = &grown[ch->n_calls++];
    *one = (struct collected_call){.name = strdup(name), .arguments = strdup(arguments)};
    c->failed = !one->name || !one->arguments;
}

static void on_finished(void *arg, int choice, enum chat_finish why)
{
    struct collected *c = arg;

    if (!c->failed)
        c->choices[choice].finish = why;
}

struct chat_sink collect_sink(struct collected *c)
{
    return (struct chat_sink){.arg = c,
                              .started = on_started,
                              .piece = on_piece,
                              .call = on_call,
                              .finished = on_finished};
}

static void release_choice(struct collected_choice *ch)
{
    buf_release(&ch->text);
    for (int i = 0; i < ch->n_calls; i++) {
        free(ch->calls[i].name);
        free(ch->calls[i].arguments);
    }
    free(ch->calls);
    free(ch->tokens);
    *ch = (struct collected_choice){0};
}

static double mean_logprob(const struct collected_choice *ch)
{
    double sum = 0;
    int n = 0;

    for (int i = 0; i < ch->n_tokens; i++)
        if (!ch->tokens[i].of_prompt && ch->tokens[i].has_logprob) {
            sum += ch->tokens[i].logprob;
            n++;
        }
    return n ? sum / n : 0;
}

/* Insertion sort: stable, and a group is small. */
static void sort_group(struct collected_choice *group, int n)
{
    for (int i = 1; i < n; i++) {
        struct collected_choice one = group[i];
        int at = i;

        for (; at > 0 && group[at - 1].mean_logprob < one.mean_logprob; at--)
            group[at] = group[at - 1];
        group[at] = one;
    }
}

void collect_choose_best(struct collected *c, int n, int best_of)
{
    int kept = 0;

    if (best_of <= n)
        return;
    for (int i = 0; i < c->n_choices; i++)
        c->choices[i].mean_logprob = mean_logprob(&c->choices[i]);
    for (int start = 0; start < c->n_choices; start += best_of) {
        sort_group(&c->choices[start], best_of);
        for (int i = 0; i < best_of; i++) {
            struct collected_choice one = c->choices[start + i];

            c->choices[start + i] = (struct collected_choice){0};
            if (i < n)
                c->choices[kept++] = one;
            else
                release_choice(&one);
        }
    }
    c->n_choices = kept;
}

void collect_release(struct collected *c)
{
    for (int i = 0; i < c->n_choices; i++)
        release_choice(&c->choices[i]);
    free(c->choices);
    served_unref(c->served);
    image_unref(c->image);
    *c = (struct collected){0};
}
