/* tensor/model_dir.h - the weight files of a model directory: which they are, and whether they
 * agree.
 *
 * model.safetensors, or model.safetensors.index.json with the shards that it names; other files
 * with weights in the directory are ignored, pickle is never read. What is checked here concerns
 * files and headers; what a config.json means, and whether the tensors fit it, is the model room's
 * matter, except for the few keys of model_dir_check_config, which refuse a directory before its
 * meaning is looked at.
 *
 * Order: model_dir_open, look at ->all or call weights_read (weights.h), model_dir_close. One
 * thread at a time. The descriptors stay open, so what was checked is what is read later. */
#ifndef TENSOR_MODEL_DIR_H
#define TENSOR_MODEL_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/safetensors.h"

struct err;

/* Why a directory is refused; model_dir_reason_word gives the word of the weights API. */
enum model_dir_reason {
    MD_OK = 0,
    MD_INCOMPLETE_WEIGHTS, /* "incomplete-weights": a file or tensor is missing, or named twice */
    MD_HEADER,      /* "safetensors_header": a weight file is not valid, or not a regular file */
    MD_UNSAFE_FILE, /* "unsafe_file": a path that leads out of the directory */
    MD_INCOMPLETE,  /* "incomplete": config.json or the tokenizer is missing or unreadable */
    MD_REMOTE_CODE, /* "remote_code" */
    MD_QUANTIZED,   /* "quantized" */
    MD_DTYPE,       /* "dtype": loading would cast */
    MD_SYSTEM,      /* "system": the system refused (I/O, memory) */
};

const char *model_dir_reason_word(enum model_dir_reason why); /* static */

struct model_file {
    char *name; /* relative to the directory */
    int fd;     /* read-only, owned */
    uint64_t bytes;
    size_t data_start;
    char *header; /* its first data_start bytes; owned */
};

struct model_dir {
    struct model_file *files;
    int n_files;
    struct st_index all; /* every tensor; .file is the index into files, .offset counts from that
                          * file's data_start; .canonical as for a single file (false for shards) */
    bool sharded;
};

/* Opens and checks the weight files of the directory `dir_fd` (borrowed). 0, or -1 with *why and
 * *e: the message names the file and the tensor. Nothing is left open after a failure. */
int model_dir_open(struct model_dir *md, int dir_fd, enum model_dir_reason *why, struct err *e);
void model_dir_close(struct model_dir *md); /* a zeroed struct is allowed */

/* What config.json and the other companions say before the model room reads them, in the order of
 * the weights page; the first that fails is reported: dtype        the weights are all BF16 or all
 * F16 (buffers like rotary_emb.inv_freq do not count) remote_code  config.json has auto_map
 *   incomplete   no config.json that can be read and names a model_type, or no tokenizer file
 *   quantized    config.json has quantization_config
 *   dtype        config.json names another dtype than the weights have, or none over F16 weights
 * MD_F32_OK: weights that are all F32 pass too (a base model, not a checkpoint). */
enum { MD_F32_OK = 1, MD_TRUST_REMOTE_CODE = 2 };

int model_dir_check_config(const struct model_dir *md, int dir_fd, unsigned flags,
                           enum model_dir_reason *why, struct err *e);

/* The one dtype of all weights. -1 with ERR_FORMAT and the counts: they are mixed, or there is
 * none. */
int model_dir_dtype(const struct st_index *ix, enum dtype *out, struct err *e);
#endif
