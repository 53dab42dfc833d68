#include "service/dir_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "model/model.h"
#include "store/catalogue.h"
#include "tensor/model_dir.h"
#include "text/chat_template.h"

enum { CONFIG_MAX = 16 << 20 };

static void read_architecture(struct dir_facts *f, int dir_fd)
{
    struct err e = {0};
    json_t *config = json_parse_file(dir_fd, "config.json", CONFIG_MAX, &e);
    const char *arch =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));

    if (arch)
        f->architecture = strdup(arch);
    json_decref(config);
}

static void count_weights(struct dir_facts *f, const struct model_dir *md)
{
    f->has_weights = true;
    f->n_bytes = md->all.data_bytes;
    for (size_t i = 0; i < md->all.n; i++)
        f->n_parameters += md->all.tensors[i].bytes * 8 / dtype_bits(md->all.tensors[i].dtype);
}

/* As a load finds it; a template that cannot be read is none. */
static bool has_template(int dir_fd)
{
    struct err e = {0};
    struct chat_source *c = chat_source_open(dir_fd, &e);
    bool has = c && chat_source_has(c, NULL);

    chat_source_unref(c);
    return has;
}

static void look_inside(struct dir_facts *f, int dir_fd, bool trust_remote_code)
{
    struct model_dir_rules rules = {.f32_ok = true, .trust_remote_code = trust_remote_code};
    struct model_dir md = {0};
    enum model_dir_reason why;
    struct err e = {0};

    read_architecture(f, dir_fd);
    f->loadable = model_open_dir(dir_fd, &rules, &md, &f->config, &f->reason, &e) == 0;
    if (f->loadable) {
        f->has_chat_template = has_template(dir_fd);
        if (model_dir_dtype(&md.all, &f->dtype, &e) < 0)
            f->dtype = DTYPE_F32;
    } else {
        snprintf(f->problem, sizeof f->problem, "%s", e.msg);
        if (model_dir_open(&md, dir_fd, &why, &e) < 0)
            return;
    }
    count_weights(f, &md);
    model_dir_close(&md);
}

void dir_facts_read(struct dir_facts *f, const char *path, bool trust_remote_code)
{
    struct err e = {0};
    int fd = fs_open_dir(path, &e);

    *f = (struct dir_facts){0};
    if (fd < 0) {
        snprintf(f->problem, sizeof f->problem, "%s", e.msg);
        return;
    }
    look_inside(f, fd, trust_remote_code);
    close(fd);
}

void dir_facts_release(struct dir_facts *f)
{
    free(f->architecture);
    *f = (struct dir_facts){0};
}

char *dir_facts_params_word(uint64_t n)
{
    char text[32];

    if (n >= 1000000000)
        snprintf(text, sizeof text, "%.1fB", (double)n / 1e9);
    else if (n >= 1000000)
        snprintf(text, sizeof text, "%.0fM", (double)n / 1e6);
    else
        snprintf(text, sizeof text, "%.0fK", (double)n / 1e3);
    return strdup(text);
}

void dir_facts_to_row(const struct dir_facts *f, struct model_row *row)
{
    free(row->architecture);
    free(row->params);
    row->architecture = f->architecture ? strdup(f->architecture) : NULL;
    row->params = f->has_weights ? dir_facts_params_word(f->n_parameters) : NULL;
    row->disk_size_mb = row->estimated_memory_mb =
        f->has_weights ? (int64_t)(f->n_bytes >> 20) + 1 : -1;
    row->supports_embeddings = f->loadable;
}
