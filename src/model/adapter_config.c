/* model/adapter_config.c - the settings of an adapter: what is computed here is read, what is
 * harmless is passed over, everything else is refused by its name. */
#include "model/adapter_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "model/adapter.h"

enum { CONFIG_MAX = 1 << 20, PATTERNS_MAX = 1024, MATCH_STEPS = 100000 };

/* ---- patterns: module path -> value; keys are regular expressions for the path's end ---- */

static pcre2_code *compile(const char *key)
{
    char pattern[600];
    int error;
    PCRE2_SIZE at;
    int n = snprintf(pattern, sizeof pattern, "^(?:.*\\.)?(?:%s)$", key);

    if (n < 0 || (size_t)n >= sizeof pattern)
        return NULL;
    return pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)n, PCRE2_NEVER_BACKSLASH_C, &error, &at,
                         NULL);
}

static bool matches(const char *key, const char *module)
{
    pcre2_code *code = compile(key);
    pcre2_match_data *found = code ? pcre2_match_data_create(1, NULL) : NULL;
    pcre2_match_context *limits = code ? pcre2_match_context_create(NULL) : NULL;
    bool yes = false;

    if (found && limits) {
        pcre2_set_match_limit(limits, MATCH_STEPS);
        yes = pcre2_match(code, (PCRE2_SPTR)module, strlen(module), 0, 0, found, limits) >= 0;
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(found);
    pcre2_code_free(code);
    return yes;
}

static const json_t *pattern_value(const json_t *config, const char *which, const char *module)
{
    const json_t *patterns = json_object_get(config, which);
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *)patterns, key, value)
        if (matches(key, module))
            return value;
    return NULL;
}

int adapter_rank(const json_t *config, const char *module)
{
    const json_t *own = pattern_value(config, "rank_pattern", module);

    return (int)json_integer_value(own ? own : json_object_get(config, "r"));
}

double adapter_ratio(const json_t *config, const char *module)
{
    const json_t *own = pattern_value(config, "alpha_pattern", module);
    double alpha = json_number_value(own ? own : json_object_get(config, "lora_alpha"));
    double r = adapter_rank(config, module);

    return alpha / (json_is_true(json_object_get(config, "use_rslora")) ? sqrt(r) : r);
}

/* ---- the rules ---- */

static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_rank(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 1 &&
           json_integer_value(v) <= ADAPTER_RANK_MAX;
}

static bool is_alpha(const json_t *v)
{
    return json_is_number(v) && isfinite(json_number_value(v));
}

static bool is_lora(const json_t *v)
{
    return json_is_string(v) && strcmp(json_string_value(v), "LORA") == 0;
}

static bool is_no_bias(const json_t *v)
{
    return is_off(v) || (json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
}

static bool is_flag(const json_t *v)
{
    return !v || json_is_boolean(v);
}

static bool is_pattern_of(const json_t *v, bool (*is_value)(const json_t *))
{
    const char *key;
    json_t *value;

    if (is_off(v))
        return true;
    if (!json_is_object(v) || json_object_size(v) > PATTERNS_MAX)
        return false;
    json_object_foreach ((json_t *)v, key, value) {
        pcre2_code *code = compile(key);

        pcre2_code_free(code);
        if (!code || !is_value(value))
            return false;
    }
    return true;
}

static bool is_rank_pattern(const json_t *v)
{
    return is_pattern_of(v, is_rank);
}

static bool is_alpha_pattern(const json_t *v)
{
    return is_pattern_of(v, is_alpha);
}

/* A text, or a list of texts. */
static bool is_modules(const json_t *v)
{
    size_t i;
    json_t *item;

    if (is_off(v) || json_is_string(v))
        return true;
    if (!json_is_array(v))
        return false;
    json_array_foreach (v, i, item)
        if (!json_is_string(item))
            return false;
    return true;
}

static const struct setting {
    const char *name;
    bool (*accepts)(const json_t *v); /* v NULL: absent */
    const char *expected;
} settings[] = {
    {"peft_type", is_lora, "must be \"LORA\""},
    {"r", is_rank, "must be a whole number from 1 to 1024"},
    {"lora_alpha", is_alpha, "must be a number"},
    {"target_modules", is_modules, "must be a text or a list of texts"},
    {"rank_pattern", is_rank_pattern, "must give a rank to each pattern"},
    {"alpha_pattern", is_alpha_pattern, "must give a number to each pattern"},
    {"use_rslora", is_flag, "must be true or false"},
    {"bias", is_no_bias, "must be \"none\""},
    {"fan_in_fan_out", is_off, "must be false"},
    {"modules_to_save", is_off, "must be null"},
    {"use_dora", is_off, "must be false"},
    {"layer_replication", is_off, "must be null"},
};

/* They say how an adapter came to be or where it was trained, not what it computes. */
static const char *const harmless[] = {
    "task_type",       "inference_mode",    "base_model_name_or_path",
    "revision",        "init_lora_weights", "lora_dropout",
    "peft_version",    "auto_mapping",      "loftq_config",
    "eva_config",      "corda_config",      "layers_to_transform",
    "layers_pattern",  "megatron_core",     "runtime_config",
    "exclude_modules", "qalora_group_size", "ensure_weight_tying",
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strcmp(settings[i].name, key) == 0)
            return true;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(harmless[i], key) == 0)
            return true;
    return false;
}

static int bad_field(struct adapter_problem *p, const char *field, const char *what, struct err *e)
{
    p->fault = ADAPTER_BAD_CONFIG;
    str_copy(p->field, sizeof p->field, *field ? field : "\"\"");
    return err_set(e, ERR_FORMAT, "adapter_config.json: %.60s %s", p->field, what);
}

int adapter_config_check(const json_t *config, struct adapter_problem *p, struct err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(config))
        return bad_field(p, "$", "must be an object", e);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!settings[i].accepts(json_object_get(config, settings[i].name)))
            return bad_field(p, settings[i].name, settings[i].expected, e);
    json_object_foreach ((json_t *)config, key, value)
        if (!is_known(key) && !is_off(value))
            return bad_field(p, key, "is not supported", e);
    return 0;
}

json_t *adapter_config_read(int dir_fd, struct adapter_problem *p, struct err *e)
{
    json_t *config = json_parse_file(dir_fd, "adapter_config.json", CONFIG_MAX, e);

    if (!config) {
        p->fault = e->code == ERR_NOMEM ? ADAPTER_FAILED : ADAPTER_BAD_CONFIG;
        return NULL;
    }
    if (adapter_config_check(config, p, e) == 0)
        return config;
    json_decref(config);
    return NULL;
}
