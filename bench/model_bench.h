/* bench/model_bench.h - what the benches of a model share: a loaded model, and the end after an
 * error. */
#ifndef BENCH_MODEL_BENCH_H
#define BENCH_MODEL_BENCH_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "model/model.h"
#include "series.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

static inline void die(const struct err *e)
{
    fprintf(stderr, "bench: %s %s\n", e->msg, e->detail);
    exit(1);
}

/* The caller frees both (weights_free, model_free). */
static inline void load_model(const char *dir, struct model_config *c, struct weights **weights,
                              struct model **model)
{
    struct model_dir_rules rules = {.f32_ok = true};
    struct model_dir md = {0};
    const char *reason = "";
    struct err e = {0};
    int fd = open(dir, O_RDONLY | O_DIRECTORY);

    if (fd < 0) {
        err_io(&e, "open %s", dir);
        die(&e);
    }
    if (model_open_dir(fd, &rules, &md, c, &reason, &e) < 0)
        die(&e);
    *weights = weights_read(&md, NULL, 0, NULL, &e);
    if (!*weights)
        die(&e);
    model_dir_close(&md);
    close(fd);
    *model = model_bind(c, *weights, &reason, &e);
    if (!*model)
        die(&e);
}
#endif
