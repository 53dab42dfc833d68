/* service/weaver/tensors.h - arrays of a request: inline JSON or cut from a binary pack.
 *
 * Inline: {"data": list or number, "dtype": "int64"|"float32"} or a plain list. In a pack:
 * {"$tensor": {"format": "raw-tensor", "codec": "raw", "dtype", "shape", "offset", "size_bytes"}},
 * little endian, offsets into the decoded pack. Only one dimension, or a scalar, is taken. What is
 * read is copied into the arena. Format: docs/api/weaver.md, "Tensors". */
#ifndef SERVICE_WEAVER_TENSORS_H
#define SERVICE_WEAVER_TENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct refusal;

/* A decoded tensor pack. A zeroed struct is a request without one. */
struct w_pack {
    const unsigned char *bytes;
    size_t n;
    unsigned char *owned; /* bytes, where they had to be decompressed */
    size_t read;          /* of all tensors so far: together they are no longer than the pack */
};

/* facts: the manifest's "tensor_pack", NULL for a request without one. raw is borrowed until
 * release. most: bytes of a decoded pack. -1: tensor_pack_corrupt, request_too_large. */
int w_pack_open(struct w_pack *p, const json_t *facts, const void *raw, size_t n, size_t most,
                struct refusal *r);
void w_pack_release(struct w_pack *p);

/* n is -1 for a scalar (one number is read). `what` names the tensor in refusals. invalid_datum. */
int w_tensor_ints(const json_t *v, struct w_pack *p, struct arena *a, const char *what,
                  int64_t **out, int64_t *n, struct refusal *r);
/* Refuses what is not finite. */
int w_tensor_floats(const json_t *v, struct w_pack *p, struct arena *a, const char *what,
                    float **out, int64_t *n, struct refusal *r);
#endif
