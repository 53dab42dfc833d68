/* tensor/gguf_import.h - a GGUF file becomes a Hugging Face directory in our canonical form.
 *
 * Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
 * model.safetensors (BF16). Architectures llama, qwen2, qwen3, lfm2 with a byte-level BPE tokenizer
 * whose pre-tokenizer is known; anything else is refused by name before a file is written. */
#ifndef TENSOR_GGUF_IMPORT_H
#define TENSOR_GGUF_IMPORT_H

#include <stdint.h>

#include "base/sha256.h"

struct err;

struct gguf_import {
    /* Nonzero stops with ERR_CANCELLED; NULL: no calls. */
    int (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
    /* filled on success */
    char architecture[32];
    char sha256[SHA256_HEX]; /* of model.safetensors */
    uint64_t file_bytes;     /* of model.safetensors */
    int n_tensors;
};

/* Reads `fd`, writes into the directory dir_fd. The files appear under their final names only when
 * all of them are written and synced; a failure leaves nothing of ours behind. ERR_CONFLICT: one of
 * the names is taken. ERR_FORMAT: not a GGUF file, damaged, or not supported (the message names
 * what). */
int gguf_import(struct gguf_import *job, int fd, int dir_fd, struct err *e);
#endif
