/* service/dir_facts.h - what the headers of a model directory tell, without loading it. */
#ifndef SERVICE_DIR_FACTS_H
#define SERVICE_DIR_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"
#include "tensor/dtype.h"

struct model_row;

enum { DIR_PROBLEM_MAX = 512 };

struct dir_facts {
    char *architecture;             /* owned; NULL: config.json names none */
    bool has_weights;               /* the two numbers are known */
    uint64_t n_parameters, n_bytes; /* of all tensors in the files */
    bool loadable;                  /* then config and dtype are filled; else reason and problem */
    struct model_config config;
    enum dtype dtype;
    bool has_chat_template;
    const char *reason; /* word of the weights API, static; NULL: the directory cannot be opened */
    char problem[DIR_PROBLEM_MAX];
};

/* Never fails: what cannot be read is a problem. Release with dir_facts_release. */
void dir_facts_read(struct dir_facts *f, const char *path, bool trust_remote_code);
void dir_facts_release(struct dir_facts *f);
/* architecture, params, sizes and supports_embeddings of the row; others are left. */
void dir_facts_to_row(const struct dir_facts *f, struct model_row *row);
char *dir_facts_params_word(uint64_t n); /* "135M", "1.2B": owned; NULL: out of memory */
#endif
