/* Foreign bytes as adapter_config.json, and as the path of a module.
 *
 * Beside memory safety it holds that a refused file names a field and has a sentence, and that an
 * accepted one gives every module a rank within its bounds and a finite ratio, whatever patterns it
 * brings: matching them ends. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/adapter.h"
#include "model/adapter_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void ask(const json_t *config, const char *module)
{
    int rank = adapter_rank(config, module);

    CHECK(rank >= 1 && rank <= ADAPTER_RANK_MAX);
    CHECK(isfinite(adapter_ratio(config, module)));
}

static void ask_of_modules(const json_t *config, const char *text, size_t len)
{
    static const char *const modules[] = {
        "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head", "",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};
    char *own = strndup(text, len < 200 ? len : 200);

    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        ask(config, modules[i]);
    CHECK(own);
    ask(config, own);
    free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct adapter_problem problem = {0};
    struct err e = {0};
    json_t *config = json_parse(text, size, &e);

    if (!config)
        return 0;
    if (adapter_config_check(config, &problem, &e) == 0)
        ask_of_modules(config, text, size);
    else
        CHECK(problem.fault == ADAPTER_BAD_CONFIG && problem.field[0] && e.msg[0]);
    json_decref(config);
    return 0;
}
