/* tensor/gguf_tokenizer.h - tokenizer.json and tokenizer_config.json of an imported model; inside
 * the room only.
 *
 * Byte-level BPE only (tokenizer.ggml.model "gpt2"), with the pre-tokenizers that are known by
 * name: smollm, qwen2, llama-bpe (also llama3), lfm2. */
#ifndef TENSOR_GGUF_TOKENIZER_H
#define TENSOR_GGUF_TOKENIZER_H

#include <jansson.h>

struct err;
struct gguf;
struct gguf_params;

/* Owned, or NULL with ERR_FORMAT: another tokenizer (named), strings that are not UTF-8, a token
 * twice, tables of different length. */
json_t *gguf_tokenizer(const struct gguf *g, const struct gguf_params *p, struct err *e);
json_t *gguf_tokenizer_config(const struct gguf *g, const struct gguf_params *p, struct err *e);
#endif
