/* service/metrics_text.c - the text format of Prometheus (exposition formats, version 0.0.4). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/procinfo.h"
#include "engine/engine.h"
#include "engine/meter.h"
#include "engine/served.h"
#include "http/server.h"
#include "service/metrics.h"
#include "service/service.h"
#include "service/state.h"

/* ---- the format ---- */

struct page {
    struct buf *out;
    struct buf model; /* model_name="..." */
};

static void add_label_value(struct buf *b, const char *s)
{
    for (; *s; s++)
        if (*s == '\n')
            buf_add_str(b, "\\n");
        else if (*s == '"' || *s == '\\')
            buf_printf(b, "\\%c", *s);
        else
            buf_add_char(b, *s);
}

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* labels: `key="value"` joined by commas, or NULL. */
static void sample(struct page *p, const char *name, const char *labels, double value)
{
    buf_add_str(p->out, name);
    if (labels && *labels)
        buf_printf(p->out, "{%s}", labels);
    buf_printf(p->out, " %.15g\n", value);
}

static void single(struct page *p, const char *name, const char *type, const char *labels,
                   double value, const char *help)
{
    head(p, name, type, help);
    sample(p, name, labels, value);
}

static void histogram(struct page *p, const char *name, const char *labels,
                      const struct histogram *h, const char *help)
{
    const char *comma = labels && *labels ? "," : "";
    const char *l = labels ? labels : "";
    uint64_t so_far = 0;
    char part[128];

    head(p, name, "histogram", help);
    for (int i = 0; i < h->n_bounds; i++) {
        so_far += h->counts[i];
        buf_printf(p->out, "%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name, l, comma, h->bounds[i],
                   so_far);
    }
    so_far += h->counts[h->n_bounds];
    buf_printf(p->out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, l, comma, so_far);
    snprintf(part, sizeof part, "%s_sum", name);
    sample(p, part, labels, h->sum);
    snprintf(part, sizeof part, "%s_count", name);
    sample(p, part, labels, (double)so_far);
}

/* ---- requests, under the names that dashboards of inference servers know ---- */

static void write_load(struct page *p, const struct engine_stats *st)
{
    const char *l = buf_str(&p->model);
    double used = st->kv_bytes ? (double)st->kv_used / (double)st->kv_bytes : 0;

    single(p, "vllm:num_requests_running", "gauge", l, st->running, "Requests that hold a slot.");
    single(p, "vllm:num_requests_waiting", "gauge", l, st->waiting,
           "Requests that wait for a slot, or are held by a pause.");
    single(p, "vllm:kv_cache_usage_perc", "gauge", l, used,
           "Part of the KV memory in use, 0 to 1.");
    single(p, "vllm:gpu_cache_usage_perc", "gauge", l, used,
           "The same under its older name; the memory is the machine's.");
    single(p, "vllm:prompt_tokens_total", "counter", l, (double)st->prompt_tokens,
           "Prompt tokens computed.");
    single(p, "vllm:generation_tokens_total", "counter", l, (double)st->generated_tokens,
           "Tokens generated.");
}

static void write_ends(struct page *p, const struct engine_meter *m)
{
    const struct {
        const char *reason;
        uint64_t n;
    } ends[] = {{"stop", m->ended_stop}, {"length", m->ended_length}, {"abort", m->ended_abort}};
    struct buf labels = {0};

    head(p, "vllm:request_success_total", "counter", "Choices that ended, by reason.");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        buf_reset(&labels);
        buf_printf(&labels, "finished_reason=\"%s\",%s", ends[i].reason, buf_str(&p->model));
        sample(p, "vllm:request_success_total", buf_str(&labels), (double)ends[i].n);
    }
    buf_release(&labels);
}

static void write_requests(struct page *p, struct service *s)
{
    const char *l = buf_str(&p->model);
    struct engine_stats st;
    struct engine_meter m;

    engine_get_stats(s->engine, &st);
    engine_get_meter(s->engine, &m);
    write_load(p, &st);
    single(p, "vllm:prefix_cache_queries_total", "counter", l, (double)m.prefix_tokens_asked,
           "Prompt tokens looked up in the prefix cache.");
    single(p, "vllm:prefix_cache_hits_total", "counter", l, (double)m.prefix_tokens_known,
           "Prompt tokens found there.");
    write_ends(p, &m);
    histogram(p, "vllm:request_queue_time_seconds", l, &m.queue_s,
              "From arrival to the request's slot.");
    histogram(p, "vllm:time_to_first_token_seconds", l, &m.first_token_s,
              "From arrival to the first token.");
    histogram(p, "vllm:inter_token_latency_seconds", l, &m.gap_s, "From one token to the next.");
    histogram(p, "vllm:time_per_output_token_seconds", l, &m.gap_s,
              "The same under its older name.");
    histogram(p, "vllm:e2e_request_latency_seconds", l, &m.request_s,
              "From arrival to the last token.");
    histogram(p, "vllm:request_prompt_tokens", l, &m.prompt_tokens, "Tokens of a prompt.");
    histogram(p, "vllm:request_generation_tokens", l, &m.generated_tokens, "Tokens of a choice.");
    single(p, "cairn_engine_steps_total", "counter", NULL, (double)st.steps, "Forward passes.");
    single(p, "cairn_requests_max_running", "gauge", NULL, st.max_running, "Slots.");
    single(p, "cairn_requests_max_waiting", "gauge", NULL, st.max_waiting, "Places in the queue.");
    single(p, "cairn_weights_images", "gauge", NULL, st.images_alive,
           "Versions of the weights in memory: the resident's and those that requests still read.");
}

/* ---- weights ---- */

static void write_condition(struct page *p, const struct weights_state *w)
{
    static const enum condition all[] = {WEIGHTS_CLEAN, WEIGHTS_WRITING, WEIGHTS_TORN};
    char label[48];

    head(p, "cairn_weights_state", "gauge", "1 for the state that the weights are in.");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(label, sizeof label, "state=\"%s\"", condition_name(all[i]));
        sample(p, "cairn_weights_state", label, w->condition == all[i]);
    }
}

static void write_resident(struct page *p, const struct served *served)
{
    struct buf labels = {0};

    head(p, "cairn_model_info", "gauge", "1 while a model is resident, with its name of now.");
    if (served) {
        buf_add_str(&labels, "name=\"");
        add_label_value(&labels, served->name);
        buf_printf(&labels, "\",origin=\"%s\"", served->checkpoint ? "checkpoint" : "model");
        sample(p, "cairn_model_info", buf_str(&labels), 1);
    }
    single(p, "cairn_weights_unsaved_commits", "gauge", NULL, served ? (double)served->commits : 0,
           "Commits since the last save or load.");
    buf_release(&labels);
}

static void write_state(struct page *p, const struct weights_state *w)
{
    bool attached = w->attachment.present;

    write_condition(p, w);
    single(p, "cairn_weights_commits_total", "counter", NULL, (double)w->commits_ever,
           "Commits that ended.");
    single(p, "cairn_weights_loads_total", "counter", NULL, (double)w->load_counter,
           "Loads of any kind: the weight epochs apart from commits.");
    single(p, "cairn_weights_generations_total", "counter", NULL, (double)w->generation,
           "Loads that replaced or made the memory.");
    single(p, "cairn_weights_steps_since_load", "gauge", NULL, (double)w->steps_since_load,
           "Commits since the last load.");
    single(p, "cairn_weights_attached", "gauge", NULL, attached, "1 while a trainer is attached.");
    single(p, "cairn_weights_attachment_stale", "gauge", NULL, attached && w->attachment.stale,
           "1 while the attached trainer gives no sign of life.");
    single(p, "cairn_weights_held", "gauge", NULL, w->hold.on, "1 while serving is quiesced.");
    single(p, "cairn_weights_hold_timeouts_total", "counter", NULL, (double)w->hold_timeouts,
           "Quiesces that the server ended.");
    single(p, "cairn_weights_saving", "gauge", NULL, w->save.busy, "1 while a save writes.");
    single(p, "cairn_weights_adapter_applied", "gauge", NULL, w->adapter.any,
           "1 while an adapter is applied.");
}

static void write_operations(struct page *p, const struct metrics_counts *c)
{
    char labels[128];

    head(p, "cairn_weights_operations_total", "counter",
         "Calls of protected routes, by outcome: accepted, refused (4xx), failed (5xx).");
    for (int i = 0; i < c->n_operations; i++) {
        const struct operation_count *o = &c->operations[i];
        const struct {
            const char *outcome;
            uint64_t n;
        } outcomes[] = {{"accepted", o->accepted}, {"refused", o->refused}, {"failed", o->failed}};

        for (size_t k = 0; k < sizeof outcomes / sizeof *outcomes; k++) {
            snprintf(labels, sizeof labels, "operation=\"%s\",outcome=\"%s\"", o->name,
                     outcomes[k].outcome);
            sample(p, "cairn_weights_operations_total", labels, (double)outcomes[k].n);
        }
    }
}

static void write_refusals(struct page *p, const struct metrics_counts *c)
{
    char labels[128];

    head(p, "cairn_refusals_total", "counter", "Errors told to clients, by face and code.");
    for (int i = 1; i < REFUSAL_CODES; i++) {
        enum refusal_code code = (enum refusal_code)i;

        if (c->refusals[i] == 0)
            continue;
        snprintf(labels, sizeof labels, "face=\"%s\",code=\"%s\",status=\"%d\"",
                 refusal_is_weaver(code)   ? "weaver"
                 : refusal_is_openai(code) ? "v1"
                                           : "api",
                 refusal_wire_code(code), refusal_status(code));
        sample(p, "cairn_refusals_total", labels, (double)c->refusals[i]);
    }
}

static void write_weights(struct page *p, struct service *s, const struct served *served,
                          const struct weights_state *w)
{
    struct metrics_counts c;

    metrics_copy(s->metrics, &c);
    write_resident(p, served);
    write_state(p, w);
    single(p, "cairn_weights_verify_failures_total", "counter", NULL, (double)c.verify_failures,
           "Loads refused because a file is not the one that its manifest names.");
    single(p, "cairn_weights_saved_bytes_total", "counter", NULL, (double)c.saved_bytes,
           "Bytes of weights in published checkpoints.");
    histogram(p, "cairn_weights_pause_seconds", NULL, &c.pause_s,
              "How long new requests were held: quiesce to resume, or a load in place.");
    histogram(p, "cairn_weights_snapshot_seconds", NULL, &c.snapshot_s,
              "The instant that a save takes between two steps.");
    histogram(p, "cairn_weights_save_seconds", NULL, &c.save_s,
              "From the end of that instant to the published checkpoint.");
    histogram(p, "cairn_weights_verify_seconds", NULL, &c.verify_s,
              "Reading and hashing a checkpoint before a load.");
    write_operations(p, &c);
    write_refusals(p, &c);
    single(p, "cairn_weaver_compared_tokens_total", "counter", NULL, (double)c.compared_tokens,
           "Sampled tokens whose log-probability a trainer computed again on the same weights.");
    single(
        p, "cairn_weaver_logprob_gap", "gauge", NULL, c.logprob_gap,
        "Largest difference between the two since the start: 0, the sampler equals the trainer.");
}

/* ---- the process ---- */

static void write_process(struct page *p, struct service *s, const char *version,
                          const struct http_stats *http)
{
    struct procinfo f;
    char label[64];

    procinfo_read(&f);
    snprintf(label, sizeof label, "version=\"%s\"", version);
    single(p, "cairn_build_info", "gauge", label, 1, "The program.");
    single(p, "cairn_http_connections", "gauge", NULL, http->connections, "Open connections.");
    single(p, "cairn_http_requests_running", "gauge", NULL, http->requests_running,
           "Handlers and streams that are not done.");
    single(p, "cairn_http_threads", "gauge", NULL, http->threads, "Threads of the handler pool.");
    single(p, "cairn_http_body_bytes", "gauge", NULL, (double)http->inflight_bytes,
           "Bytes of request bodies held.");
    single(p, "cairn_http_requests_total", "counter", NULL, (double)http->requests_total,
           "Requests of all routes.");
    single(p, "cairn_log_dropped_total", "counter", NULL, (double)log_dropped(),
           "Lines of the log that were dropped because nobody read standard error.");
    single(p, "process_start_time_seconds", "gauge", NULL, (double)s->started_wall_ms / 1e3,
           "Unix time of the start.");
    single(p, "process_cpu_seconds_total", "counter", NULL, f.cpu_seconds,
           "User and system time of all threads.");
    single(p, "process_resident_memory_bytes", "gauge", NULL, (double)f.resident_bytes,
           "Memory in RAM, mapped weights included.");
    single(p, "process_virtual_memory_bytes", "gauge", NULL, (double)f.virtual_bytes,
           "Address space.");
    single(p, "process_open_fds", "gauge", NULL, f.open_fds, "Open descriptors.");
    single(p, "process_threads", "gauge", NULL, f.threads, "Threads.");
}

void metrics_write(struct service *s, const char *version, const struct http_stats *http,
                   struct buf *out)
{
    struct page p = {.out = out};
    struct served *served;
    struct weights_state w;

    state_read(s, &w, &served);
    buf_add_str(&p.model, "model_name=\"");
    if (served)
        add_label_value(&p.model, served->base_model[0] ? served->base_model : served->name);
    buf_add_char(&p.model, '"');
    write_requests(&p, s);
    write_weights(&p, s, served, &w);
    write_process(&p, s, version, http);
    buf_release(&p.model);
    served_unref(served);
}
